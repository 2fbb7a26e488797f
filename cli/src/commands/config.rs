//! `telexec config`: the path and the effective content of the configuration.

use serde::Serialize;

use crate::args::ConfigAction;
use crate::config::{self, Config, ConnectArgs};
use crate::output::{self, Failure, exit};

/// The output of `config show --json`.
#[derive(Serialize)]
struct ConfigOutput {
    /// `null` if there is no file.
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
    let Some((path, _)) = config::locate() else {
        return Err(Failure::message(exit::USAGE, "no configuration path: HOME is not set"));
    };
    output::print(format!("{}\n", path.display()).as_bytes())
}

fn show(json: bool, args: &ConnectArgs) -> Result<(), Failure> {
    let config = Config::load()?.effective(args);
    let file = config::locate().map(|(path, _)| path).filter(|path| path.is_file());
    let file = file.map(|path| path.display().to_string());
    let text = if json {
        serde_json::to_string_pretty(&ConfigOutput { file, config })
            .map_err(|error| Failure::new(exit::LOST, &error))?
    } else {
        let text = toml::to_string(&config).map_err(|error| Failure::new(exit::LOST, &error))?;
        format!("# {}\n{text}", file.as_deref().unwrap_or("no configuration file"))
    };
    output::print(format!("{}\n", text.trim_end()).as_bytes())
}
