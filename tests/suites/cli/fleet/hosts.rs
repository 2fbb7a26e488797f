//! Which hosts: sets, groups, files, inventories, DNS.

use std::process::Stdio;

use telexec_tests::{Agent, within};
use tokio::io::AsyncWriteExt;

use super::super::{Said, say};
use super::{Fleet, sorted, summary};

/// The hosts that these flags come to.
async fn listed(fleet: &Fleet, args: &[&str]) -> String {
    fleet.say(&[&["--list-hosts", "-b"], args].concat()).await.answer().trim_end().to_owned()
}

#[tokio::test]
async fn sets_groups_and_exclusions_name_hosts() {
    let fleet = Fleet::of(3);
    for (args, hosts) in [
        (&["-w", "web[01-03,01],web02"][..], "web[01-03]"),
        (&["-w", "@web", "-x", "web02"], "web[01,03]"),
        (&["-g", "web", "-w", "other"], "other,web[01-03]"),
        (&["-a", "-x", "@web"], "other"),
        (&["-w", "db[1-2].example.org:1"], "db[1-2].example.org:1"),
    ] {
        assert_eq!(listed(&fleet, args).await, hosts, "{args:?}");
    }
    let in_order = fleet.say(&["--list-hosts", "-w", "web03,web[01-03]"]).await;
    assert_eq!(in_order.answer(), "web03\nweb01\nweb02\n");
    assert_eq!(fleet.say(&["--list-hosts", "--pick", "2", "-w", "@web"]).await.answer().lines().count(), 2);
}

#[tokio::test]
async fn a_host_that_is_named_twice_is_one() {
    let fleet = Fleet::of(2);
    let said = fleet.say(&["-w", "web01,@web", "-w", "web01", "-c", "echo hi"]).await;
    assert_eq!(sorted(said.stdout()), ["web01: hi", "web02: hi"]);
    assert_eq!(summary(&said), ["2 of 2 ok"]);
}

#[tokio::test]
async fn files_name_hosts() {
    let fleet = Fleet::of(3);
    let file = fleet.path().join("hosts");
    std::fs::write(&file, "# these\nweb01 # and\n\nweb[02-03],\n").unwrap();
    assert_eq!(listed(&fleet, &["--hosts-file", file.to_str().unwrap()]).await, "web[01-03]");
    let mut command = fleet.telexec(&["--list-hosts", "-b", "--hosts-file", "-", "-x", "web01"]);
    let mut child = command.stdin(Stdio::piped()).spawn().unwrap();
    let mut stdin = child.stdin.take().unwrap();
    within(stdin.write_all(b"web01\nweb02\n")).await.unwrap();
    drop(stdin);
    assert_eq!(Said::by_child(child).await.answer(), "web02\n");
    let both = fleet.say(&["-i", "--hosts-file", "-", "-c", "cat"]).await;
    assert!(both.failure(2).contains("standard input cannot be both"), "{both:?}");
}

#[tokio::test]
async fn every_address_of_a_name_is_a_host() {
    let fleet = Fleet::of(1);
    let port = fleet.agent.address().rsplit_once(':').unwrap().1;
    let (name, other) = (format!("dns:localhost:{port}"), format!("[::1]:{port}"));
    let said = fleet.say(&["-w", &name, "-x", &other, "-c", "echo hi"]).await;
    assert_eq!(said.stdout(), format!("127.0.0.1:{port}: hi\n"));
    let missing = fleet.say(&["-w", "dns:no-such-host.invalid:1", "-c", "true"]).await;
    assert!(missing.failure(255).contains("dns:no-such-host.invalid:1: "), "{missing:?}");
}

#[tokio::test]
async fn credentials_that_cannot_be_used_are_a_mistake_of_the_callers() {
    let fleet = Fleet::of(2);
    for line in [&["--cert", "nope", "-w", "@web", "true"][..], &["ping", "--cert", "nope", "-w", "@web"]] {
        let said = fleet.say(line).await;
        assert!(said.failure(2).contains("web[01-02]: unreachable: cannot use nope: "), "{said:?}");
    }
}

#[tokio::test]
async fn what_is_no_set_of_hosts_is_reported() {
    for (args, why) in [
        (&["-w", "web[9-1]"][..], "is reversed"),
        (&["-w", "web[1-999999999]"], "more than 100000 hosts"),
        (&["-w", "web[1-"], "unclosed"),
        (&["-w", "@nope"], "no group \"nope\""),
        (&["-w", ","], "the set is empty"),
        (&["-w", "a", "-x", "a"], "the set is empty"),
        (&[], "no hosts given"),
        (&["uptime", "-w", "a"], "flags go before the program"),
        (&["logs", "fleet-1"], "telexec fleet attach ID"),
        (&["wait", "fleet-1"], "telexec fleet attach ID"),
        (&["-a"], "-a selects the targets of the configuration, which has none"),
        (&["-w", "a:b"], "not a port"),
        (&["-w", "local"], "telexec exec local"),
        (&["-w", "/tmp"], "the working directory of the command is --workdir"),
        (&["--hosts-file", "/nothing"], "No such file"),
        (&["-w", "a:1", "--cert", "x"], "must be given together"),
    ] {
        let said = say(&[&["fleet"], args, &["-c", "true"]].concat()).await;
        assert!(said.failure(2).contains(why), "{args:?}: {said:?}");
    }
    let said = say(&["fleet", "-w", "a"]).await;
    assert!(said.failure(2).contains("no command given"), "{said:?}");
}

#[tokio::test]
async fn a_subcommand_after_a_flag_is_a_program_and_said_to_be() {
    let fleet = Fleet::of(1);
    for (line, hint) in [
        (&["-w", "web01", "logs", "x"][..], "telexec fleet attach ID"),
        (&["-w", "web01", "attach", "x"], "telexec fleet attach -w HOSTS"),
        (&["-w", "web01", "A=1", "env"], "-e 'A=1'"),
        (&["-w", "web01", "echo it's"], "use -c 'echo it'"),
    ] {
        let said = fleet.say(line).await;
        assert!(said.code == 1 && said.remark().contains(hint), "{line:?}: {said:?}");
    }
}

#[tokio::test]
async fn without_targets_all_hints_at_the_groups() {
    let fleet = Fleet::of(1);
    std::fs::write(fleet.path().join("config.toml"), "[groups]\nweb = ['a']\ndb = ['b']\n").unwrap();
    let said = fleet.say(&["ping", "-a"]).await;
    assert!(said.failure(2).contains("for the hosts of its groups: -w @db,@web"), "{said:?}");
}

#[tokio::test]
async fn a_dry_run_asks_and_runs_nothing() {
    let fleet = Fleet::of(2);
    let forbids = "forbid(principal, action == Action::\"Execute\", resource);";
    let strict = Agent::builder().policy(format!("permit(principal, action, resource);\n{forbids}")).start();
    fleet.add("strict", strict.uri());
    fleet.add("gone", "127.0.0.1:1");
    let mark = fleet.path().join("mark");
    let text = format!("touch {}", mark.display());
    let said = fleet.say(&["--dry-run", "-w", "@web,strict,gone", "-c", &text]).await;
    let lines: Vec<_> = said.stdout().lines().collect();
    assert_eq!((said.code, said.stderr(), lines[0], lines.len()), (1, "", "web[01-02]: allowed", 3), "{said:?}");
    assert!(lines[1].starts_with("strict: refused: ") && lines[2].starts_with("gone: unreachable: "), "{said:?}");
    assert!(!mark.exists());
}
