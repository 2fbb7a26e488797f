//! Reads a command line as getopt(3) and ssh(1) do: flags in clusters, on both sides of the host, up to the first word
//! of the command.

use std::collections::VecDeque;
use std::ffi::OsString;

use super::host;
use super::keys;
use super::line::{Line, LogLevel, Request, Session, Tty};
use crate::output::{Failure, exit};

/// Flags without a value that have an effect, and those without one here: versions and addresses of the protocol,
/// agents, X11, GSSAPI, compression, masters of connections, local logs.
const FLAGS: &str = "fGNnqsTtV";
const IGNORED_FLAGS: &str = "1246AaCgKkMvXxYy";
/// Likewise with a value. What is ignored: addresses to connect from, ciphers, the escape character, ssh's
/// configuration and keys, sockets of masters, tags.
const VALUES: &str = "DEJLlOopQRWw";
const IGNORED_VALUES: &str = "BbceFIimPS";

const USAGE: &str =
    "usage: telexec ssh [FLAGS] [USER@]HOST [WORD]...; flags are those of ssh(1), see telexec ssh --help";

/// Reads the words after `ssh`.
pub(super) fn line(words: Vec<OsString>) -> Result<Line, Failure> {
    let words = words.into_iter().map(|word| {
        let text = |word: OsString| Failure::message(exit::LOST, format!("not UTF-8: {}", word.display()));
        word.into_string().map_err(text)
    });
    let mut words = words.collect::<Result<VecDeque<_>, _>>()?;
    read(&mut words).map_err(|error| Failure::message(exit::LOST, error))
}

fn read(words: &mut VecDeque<String>) -> Result<Line, String> {
    let mut line = Line::default();
    let is_over = flags(words, &mut line)?;
    if line.request == Request::Version || matches!(line.request, Request::Query(_)) {
        return Ok(line);
    }
    let host = host::Host::parse(&words.pop_front().ok_or(USAGE)?)?;
    line.host = host.name;
    line.settings.user = line.settings.user.take().or(host.user);
    line.settings.port = line.settings.port.or(host.port);
    if !is_over {
        flags(words, &mut line)?;
    }
    line.command = (!words.is_empty()).then(|| words.make_contiguous().join(" "));
    command(&mut line)?;
    Ok(line)
}

/// RemoteCommand stands for words.
fn command(line: &mut Line) -> Result<(), String> {
    match (&line.command, line.settings.remote_command.take()) {
        (Some(_), Some(_)) => Err("there is both a command and RemoteCommand".to_owned()),
        (None, remote) => {
            line.command = remote;
            Ok(())
        }
        (Some(_), None) => Ok(()),
    }
}

/// Reads flags up to the first word that is none, or `--`, which returns true.
fn flags(words: &mut VecDeque<String>, line: &mut Line) -> Result<bool, String> {
    while let Some(cluster) = words.pop_front_if(|word| word.len() > 1 && word.starts_with('-')) {
        if cluster == "--" {
            return Ok(true);
        }
        for (at, letter) in cluster.char_indices().skip(1) {
            if FLAGS.contains(letter) {
                flag(letter, line);
            } else if VALUES.contains(letter) || IGNORED_VALUES.contains(letter) {
                let attached = cluster.get(at + 1..).filter(|rest| !rest.is_empty()).map(str::to_owned);
                let value = attached.or_else(|| words.pop_front());
                valued(letter, &value.ok_or_else(|| format!("-{letter} needs a value; {USAGE}"))?, line)?;
                break;
            } else if !IGNORED_FLAGS.contains(letter) {
                return Err(format!("unknown option -- {letter}; {USAGE}"));
            }
        }
    }
    Ok(false)
}

fn flag(letter: char, line: &mut Line) {
    let settings = &mut line.settings;
    match letter {
        'f' => (settings.background, settings.no_stdin) = (true, true),
        'G' => line.request = Request::Settings,
        'N' => settings.session = Some(Session::Nothing),
        'n' => settings.no_stdin = true,
        'q' => settings.log_level = Some(LogLevel::Quiet),
        's' => settings.session = Some(Session::Subsystem),
        'T' => settings.tty = Some(Tty::Never),
        't' if settings.tty == Some(Tty::Wanted) => settings.tty = Some(Tty::Always),
        't' if settings.tty != Some(Tty::Always) => settings.tty = Some(Tty::Wanted),
        'V' => line.request = Request::Version,
        _ => {}
    }
}

fn valued(letter: char, value: &str, line: &mut Line) -> Result<(), String> {
    let settings = &mut line.settings;
    let text = || value.to_owned();
    match letter {
        'D' | 'L' | 'R' => settings.forward(letter, value),
        'E' => settings.log_file = Some(text()),
        'J' => drop(settings.proxy.get_or_insert_with(text)),
        'l' => drop(settings.user.get_or_insert_with(text)),
        'O' => line.request = Request::Control(text()),
        'o' => keys::apply(value, settings)?,
        'p' => drop(settings.port.get_or_insert(host::port(value)?)),
        'Q' => line.request = Request::Query(text()),
        'W' => settings.stdio_forward = Some(text()),
        'w' => settings.tunnel = Some(text()),
        _ => {}
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::super::line::{Forward, Settings};
    use super::*;

    fn parsed(text: &str) -> Result<Line, String> {
        let words = shlex::split(text).unwrap().into_iter().map(OsString::from).collect();
        line(words).map_err(|failure| failure.to_string())
    }

    fn settings(text: &str) -> Settings {
        parsed(text).unwrap_or_else(|error| panic!("{text}: {error}")).settings
    }

    /// A line, its host, and its command.
    fn reads_as(text: &str, host: &str, command: Option<&str>) -> Settings {
        let line = parsed(text).unwrap_or_else(|error| panic!("{text}: {error}"));
        assert_eq!((line.host.as_str(), line.command.as_deref()), (host, command), "{text}");
        line.settings
    }

    fn user(name: &str) -> Settings {
        Settings { user: Some(name.to_owned()), ..Settings::default() }
    }

    #[test]
    fn lines_of_programs_that_copy_read_as_ssh_reads_them() {
        // git
        let command = "git-upload-pack '/srv/a b.git'";
        let text = format!("-o SendEnv=GIT_PROTOCOL -p 2222 git@web1 {}", shlex::try_quote(command).unwrap());
        let sent = vec!["GIT_PROTOCOL".to_owned()];
        let expected = Settings { port: Some(2222), send_environment: sent, ..user("git") };
        assert_eq!(reads_as(&text, "web1", Some(command)), expected);
        assert_eq!(parsed("-G -o SendEnv=GIT_PROTOCOL -p 22 root@web1").unwrap().request, Request::Settings);
        // rsync, borg
        let command = "rsync --server -logDtpre.iLsfxCIvu . /srv/a";
        assert_eq!(reads_as(&format!("-l root web1 {command}"), "web1", Some(command)), user("root"));
        assert_eq!(reads_as("root@web1 borg serve", "web1", Some("borg serve")), user("root"));
        // scp -O, scp, sftp, sshfs
        let options = "-x -oPermitLocalCommand=no -oClearAllForwardings=yes -oRemoteCommand=none -oRequestTTY=no";
        let read = reads_as(&format!("{options} -l me -- web1 scp -t /srv/a"), "web1", Some("scp -t /srv/a"));
        assert_eq!(read, Settings { tty: Some(Tty::Never), ..user("me") });
        for (text, host) in [
            (&*format!("{options} -oForwardAgent=no -l me -s -- web1 sftp"), "web1"),
            ("'-oForwardX11 no' '-oForwardAgent no' '-oPermitLocalCommand no' -s -- ::1 sftp", "::1"),
            ("-x -a -oClearAllForwardings=yes -2 me@web1 -s sftp", "web1"),
        ] {
            assert_eq!(reads_as(text, host, Some("sftp")).session, Some(Session::Subsystem));
        }
    }

    #[test]
    fn lines_of_programs_that_run_commands_read_as_ssh_reads_them() {
        // Ansible
        let options = "-C -o ControlMaster=auto -o ControlPersist=60s -o KbdInteractiveAuthentication=no \
                       -o 'User=\"root\"' -o ConnectTimeout=10 -o 'ControlPath=\"/tmp/a b\"'";
        let command = "/bin/sh -c 'echo ~root && sleep 0'";
        let text = format!("{options} -tt web1 {}", shlex::try_quote(command).unwrap());
        let timeout = Some(Duration::from_secs(10));
        let expected = Settings { connect_timeout: timeout, tty: Some(Tty::Always), ..user("root") };
        assert_eq!(reads_as(&text, "web1", Some(command)), expected);
        // clush, pdsh, GNU parallel, distcc
        let text = "-oForwardAgent=no -oForwardX11=no -oConnectTimeout=15 -oBatchMode=yes web1 true";
        assert_eq!(reads_as(text, "web1", Some("true")).connect_timeout, Some(Duration::from_secs(15)));
        assert_eq!(reads_as("-2 -a -x -lroot web1 uname -a", "web1", Some("uname -a")), user("root"));
        for command in ["exec parallel --number-of-threads", "distccd --inetd --enable-tcp-insecure"] {
            reads_as(&format!("web1 {command}"), "web1", Some(command));
            reads_as(&format!("web1 -- {command}"), "web1", Some(command));
        }
    }

    #[test]
    fn flags_stand_in_clusters_and_on_both_sides_of_the_host() {
        let read = reads_as("-xa2q -tt web1 -l me -n -- ls -l", "web1", Some("ls -l"));
        assert_eq!(read.tty, Some(Tty::Always));
        assert_eq!((read.user.as_deref(), read.no_stdin, read.log_level), (Some("me"), true, Some(LogLevel::Quiet)));
        assert_eq!(reads_as("-t -t web1", "web1", None).tty, Some(Tty::Always));
        assert_eq!(reads_as("-tT web1", "web1", None).tty, Some(Tty::Never));
        assert_eq!(reads_as("-vvvtlme web1", "web1", None).user.as_deref(), Some("me"));
        // after -- and the host there is only the command
        reads_as("-- web1 -l me", "web1", Some("-l me"));
        reads_as("web1 ls -l me", "web1", Some("ls -l me"));
        reads_as("web1 - x", "web1", Some("- x"));
        assert_eq!(parsed("web1 -l me -G").unwrap().request, Request::Settings);
    }

    #[test]
    fn hosts_have_users_and_ports() {
        for (text, user, host, port) in [
            ("a@b@web1", Some("a@b"), "web1", None),
            ("ssh://me@web1:2222/", Some("me"), "web1", Some(2222)),
            ("ssh://web1", None, "web1", None),
            ("ssh://me@[::1]:22", Some("me"), "::1", Some(22)),
            ("me@fe80::1", Some("me"), "fe80::1", None),
            ("web1:7443", None, "web1:7443", None),
            ("unix:///run/a@b.sock", None, "unix:///run/a@b.sock", None),
            ("me@unix:///run/a.sock", Some("me"), "unix:///run/a.sock", None),
        ] {
            let read = reads_as(text, host, None);
            assert_eq!((read.user.as_deref(), read.port), (user, port), "{text}");
        }
        // the first counts
        let read = settings("-l a -p 1 -oUser=b -oPort=2 ssh://c@web1:3");
        assert_eq!((read.user.as_deref(), read.port), (Some("a"), Some(1)));
    }

    #[test]
    fn keys_are_written_in_any_way() {
        for text in ["User=me", "user me", "USER = me", " User\tme", "User=\"me\"", "User 'me'"] {
            assert_eq!(settings(&format!("-o {} web1", shlex::try_quote(text).unwrap())).user.as_deref(), Some("me"));
        }
        let read =
            settings("-o 'RemoteCommand=echo \"a b\"' -o 'SetEnv=A=\"b c\" D=' -o RequestTTY=force -oUnknown=1 web1");
        assert_eq!(read.environment, [("A", "b c"), ("D", "")].map(|(a, b)| (a.to_owned(), b.to_owned())));
        reads_as("-o 'RemoteCommand=echo \"a b\"' web1", "web1", Some("echo \"a b\""));
        let read =
            settings("-oSessionType=none -oStdinNull=yes -oHostName=h -oLogLevel=error -oConnectTimeout=none web1");
        let expected = Settings {
            session: Some(Session::Nothing),
            no_stdin: true,
            host_name: Some("h".to_owned()),
            log_level: Some(LogLevel::Errors),
            ..Settings::default()
        };
        assert_eq!(read, expected);
    }

    #[test]
    fn forwards_are_read() {
        let read = settings("-fNL 8080:a:80 -D1080 -R /a:/b -o 'LocalForward=1 b:2' -oProxyCommand=none -J x web1");
        let forwards = [('L', "8080:a:80"), ('D', "1080"), ('R', "/a:/b"), ('L', "1:b:2")];
        let expected = forwards.map(|(kind, text)| Forward { kind, specification: text.to_owned() });
        assert_eq!(read.forwards, expected);
        assert_eq!((read.background, read.proxy.as_deref()), (true, Some("x")));
        assert_eq!(settings("-W a:22 web1").stdio_forward.as_deref(), Some("a:22"));
    }

    #[test]
    fn what_ssh_refuses_is_refused() {
        for (text, why) in [
            ("", "usage: "),
            ("-l me", "usage: "),
            ("-Z web1", "unknown option -- Z; usage: "),
            ("--help web1", "unknown option -- -"),
            ("web1 -p", "-p needs a value"),
            ("-p 0 web1", "\"0\" is not a port"),
            ("-p 65536 web1", "is not a port"),
            ("@web1", "is not a host"),
            ("me@ true", "is not a host"),
            ("me@-x true", "is not a host"),
            ("ssh://web1:x", "is not a port"),
            // Ansible asks so whether ssh has this key
            ("-o ControlPersist", "-o ControlPersist: "),
            ("-o User= web1", "expected KEY=VALUE"),
            ("-o 'User=\"me' web1", "a quote is not closed"),
            ("-o SetEnv=A web1", "expected NAME=VALUE"),
            ("-o RequestTTY=maybe web1", "-o RequestTTY=maybe: "),
            ("-o RemoteCommand=true web1 true", "both a command and RemoteCommand"),
        ] {
            let error = parsed(text).unwrap_err();
            assert!(error.contains(why), "{text}: {error}");
        }
    }

    #[test]
    fn what_needs_no_host_has_none() {
        assert_eq!(parsed("-V").unwrap().request, Request::Version);
        assert_eq!(parsed("-Q cipher").unwrap().request, Request::Query("cipher".to_owned()));
        assert_eq!(parsed("-o ControlPath=x -O check web1").unwrap().request, Request::Control("check".to_owned()));
    }
}
