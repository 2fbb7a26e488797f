//! `telexec config`: where the configuration is, and what it comes to.

use serde::Serialize;

use super::file::{Config, Credentials};
use crate::args::{ConfigAction, ConnectArgs};
use crate::failure::Failure;
use crate::{exit, output};

/// What `config show --json` prints beside the configuration.
#[derive(Serialize)]
struct Shown {
    /// `null`: there is none.
    file: Option<String>,
    #[serde(flatten)]
    config: Config,
}

pub(crate) fn run(action: ConfigAction) -> Result<u8, Failure> {
    match action {
        ConfigAction::Path => path(),
        ConfigAction::Show { json, connect } => show(json, &connect),
    }
    .map(|()| 0)
}

fn path() -> Result<(), Failure> {
    let Some((path, _)) = super::locate() else {
        return Err(Failure::text(exit::USAGE, "there is no place for a configuration: HOME is not set"));
    };
    output::print(format!("{}\n", path.display()).as_bytes())
}

fn show(json: bool, args: &ConnectArgs) -> Result<(), Failure> {
    let config = Config::load()?.resolved(args);
    let file = super::locate().map(|(path, _)| path).filter(|path| path.is_file());
    let file = file.map(|path| path.display().to_string());
    let text = if json {
        serde_json::to_string_pretty(&Shown { file, config }).map_err(|error| Failure::new(exit::LOST, &error))?
    } else {
        let text = toml::to_string(&config).map_err(|error| Failure::new(exit::LOST, &error))?;
        format!("# {}\n{text}", file.as_deref().unwrap_or("there is no configuration file"))
    };
    output::print(format!("{}\n", text.trim_end()).as_bytes())
}

impl Config {
    /// With what each target has from elsewhere: its credentials, the flags, the environment and the defaults.
    fn resolved(mut self, args: &ConnectArgs) -> Self {
        let whole = self.clone();
        for target in self.targets.values_mut() {
            let Credentials { cert, key, ca, server_name } = whole.credentials_of(Some(target), args);
            (target.cert, target.key, target.ca, target.server_name) = (cert, key, ca, server_name);
            let timeout = args.connect_timeout.or(target.connect_timeout).or(whole.defaults.connect_timeout);
            target.connect_timeout = timeout;
            target.user = target.user.take().or_else(|| whole.defaults.user.clone());
        }
        let defaults = &mut self.defaults;
        let Credentials { cert, key, ca, server_name } = whole.credentials_of(None, args);
        (defaults.cert, defaults.key, defaults.ca, defaults.server_name) = (cert, key, ca, server_name);
        defaults.connect_timeout = args.connect_timeout.or(defaults.connect_timeout);
        self
    }
}
