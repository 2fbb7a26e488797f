//! Standard input of `telexec exec -i`.

use std::process::Stdio;

use rustix::fs::{OFlags, fcntl_getfl};
use telexec_tests::within;
use tokio::io::{AsyncWriteExt, BufReader};

use super::{Said, Site, next_line};

pub(super) async fn standard_input_is_sent_when_asked_for(site: Site) {
    let all: Vec<u8> = (0..=255).cycle().take(300_000).collect();
    for (flags, expected) in [(&["-i"][..], &all[..]), (&["--stdin"], &all), (&[], &[])] {
        let mut command = site.telexec("exec", &[flags, &["--", "cat"]].concat());
        let mut child = command.stdin(Stdio::piped()).spawn().unwrap();
        let mut stdin = child.stdin.take().unwrap();
        let all = all.clone();
        // without -i it is not read
        let feed = tokio::spawn(async move { stdin.write_all(&all).await });
        let said = Said::by_child(child).await;
        assert!(said.code == 0 && said.stdout == expected, "{flags:?}: {} bytes", said.stdout.len());
        assert_eq!(within(feed).await.unwrap().is_ok(), !flags.is_empty());
    }
}

pub(super) async fn standard_input_is_sent_while_it_comes(site: Site) {
    let mut child = site.telexec("exec", &["-i", "--", "cat"]).stdin(Stdio::piped()).spawn().unwrap();
    let mut stdin = child.stdin.take().unwrap();
    let mut stdout = BufReader::new(child.stdout.take().unwrap());
    for line in ["one\n", "two\n", "three\n"] {
        stdin.write_all(line.as_bytes()).await.unwrap();
        assert_eq!(next_line(&mut stdout).await, line);
    }
    drop(stdin);
    Said::by_child(child).await.answer();
}

pub(super) async fn input_that_is_not_read_is_no_error(site: Site) {
    for (args, expected) in [(&["-i", "--", "head", "-c", "3"][..], "y\ny"), (&["-i", "-c", "exec <&-; echo a"], "a\n")]
    {
        let mut child = site.telexec("exec", args).stdin(Stdio::piped()).spawn().unwrap();
        let mut stdin = child.stdin.take().unwrap();
        let feed = tokio::spawn(async move { while stdin.write_all(&b"y\n".repeat(10_000)).await.is_ok() {} });
        assert_eq!(Said::by_child(child).await.answer(), expected);
        within(feed).await.unwrap();
    }
}

#[tokio::test]
async fn standard_input_has_no_limit() {
    let site = Site::unix().await;
    let size = 64 << 20;
    let file = site.path().join("file");
    std::fs::File::create(&file).unwrap().set_len(size).unwrap();
    let mut command = site.telexec("exec", &["-i", "--", "wc", "-c"]);
    command.stdin(std::fs::File::open(&file).unwrap());
    assert_eq!(Said::by(command).await.answer(), format!("{size}\n"));
}

#[tokio::test]
async fn a_command_that_does_not_read_holds_its_input_back() {
    let site = Site::unix().await;
    let mut child = site.telexec("exec", &["-i", "--", "sleep", "300"]).stdin(Stdio::piped()).spawn().unwrap();
    let mut stdin = child.stdin.take().unwrap();
    let endless = async { while stdin.write_all(&[0; 1 << 16]).await.is_ok() {} };
    // far more than what waits on the way, were it taken
    let taken = tokio::time::timeout(std::time::Duration::from_secs(2), endless).await;
    assert!(taken.is_err(), "it ends");
    let status = std::fs::read_to_string(format!("/proc/{}/status", child.id().unwrap())).unwrap();
    let peak = status.lines().find_map(|line| line.strip_prefix("VmHWM:")).unwrap();
    let peak: u64 = peak.trim().trim_end_matches(" kB").parse().unwrap();
    assert!(peak < 100 * 1024, "{peak} kB");
    child.start_kill().unwrap();
}

#[tokio::test]
async fn standard_input_stays_blocking_for_others() {
    let site = Site::unix().await;
    let (reader, mut writer) = std::io::pipe().unwrap();
    let mut command = site.telexec("exec", &["-i", "--", "head", "-n1"]);
    command.stdin(reader.try_clone().unwrap());
    std::io::Write::write_all(&mut writer, b"line\n").unwrap();
    assert_eq!(Said::by(command).await.answer(), "line\n");
    assert!(!fcntl_getfl(&reader).unwrap().contains(OFlags::NONBLOCK));
}
