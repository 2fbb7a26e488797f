//! Hosts from inventories: Ansible's files, its scripts, and other commands.

use std::collections::BTreeMap;
use std::path::Path;

use serde_json::{Value, json};
use telexec_tests::{executable, within};
use tokio::process::Command;

use super::super::Said;
use super::{Fleet, sorted, summary};

#[tokio::test]
async fn commands_name_hosts_and_say_where_they_are() {
    let fleet = Fleet::of(2);
    let inventory = json!({
        "_meta": { "hostvars": {
            "a1": { "telexec_target": fleet.agent.uris()[0] },
            "a2": { "ansible_host": fleet.agent.uris()[1].strip_prefix("tcp://").unwrap() },
        } },
        "app": { "hosts": ["a1", "a2"] },
        "first": ["a1"],
    });
    let script = format!("#!/bin/sh\n[ \"$1\" = --list ] && echo '{inventory}'");
    let program = executable(fleet.path(), "inventory", &script);
    let program = program.to_str().unwrap();
    // a script is run as Ansible runs it, and a command as it is
    for source in [program, &format!("{program} --list")] {
        let run = async |args: &[&str]| fleet.say(&[&["--inventory", source], args, &["-c", "echo hi"]].concat()).await;
        assert_eq!(sorted(run(&["-a"]).await.stdout()), ["a1: hi", "a2: hi"]);
        assert_eq!(sorted(run(&["-w", "@app", "-x", "@first"]).await.stdout()), ["a2: hi"]);
        assert_eq!(sorted(run(&["-w", "@first,web01"]).await.stdout()), ["a1: hi", "web01: hi"]);
    }
    for (command, why) in [
        ("exit 3", "failed: exit status: 3"),
        ("echo no", "the output is not JSON"),
        ("echo 1", "neither a list"),
        ("echo '[\"a\\\\u001b\"]'", "not a host name"),
    ] {
        let said = fleet.say(&["--inventory", command, "-a", "-c", "true"]).await;
        assert!(said.failure(2).contains(why), "{said:?}");
    }
}

#[tokio::test]
async fn a_script_without_variables_is_asked_for_those_of_each_host() {
    let fleet = Fleet::of(1);
    let script = format!(
        "#!/bin/sh\ncase $1 in --list) echo '{{\"app\": [\"a\"]}}' ;; \
         --host) [ $2 = a ] && echo '{{\"telexec_target\": \"{}\"}}' ;; esac",
        fleet.agent.uris()[0]
    );
    let program = executable(fleet.path(), "inventory", script);
    let said = fleet.say(&["-q", "--inventory", program.to_str().unwrap(), "-w", "@app", "--", "echo", "hi"]).await;
    assert_eq!(said.answer(), "a: hi\n");
}

/// The flags of a caller whose configuration has no name of certificates.
fn credentials(fleet: &Fleet) -> Vec<String> {
    let pair = &fleet.certs.client;
    let files = [("--cert", &pair.cert), ("--key", &pair.key), ("--ca", &fleet.certs.ca.cert())];
    files.into_iter().flat_map(|(flag, file)| [flag.to_owned(), file.display().to_string()]).collect()
}

#[tokio::test]
async fn certificates_are_of_the_name_in_the_inventory() {
    let fleet = Fleet::of(1);
    let port = fleet.agent.address().rsplit_once(':').unwrap().1.to_owned();
    // the agent's certificate is of 127.0.0.1 too
    let text = format!(
        "[web]\nlocalhost:2222 ansible_host=127.0.0.1\nalias ansible_host=127.0.0.1 ansible_port=22\n\
         named ansible_host=127.0.0.1 telexec_server_name=localhost\n[web:vars]\ntelexec_port={port}\n"
    );
    let file = fleet.path().join("hosts.ini");
    std::fs::write(&file, text).unwrap();
    let mut command = fleet.telexec(&["--inventory", file.to_str().unwrap(), "-w", "@web"]);
    command.args(credentials(&fleet)).args(["--", "echo", "hi"]).env("TELEXEC_CONFIG", "/dev/null");
    let said = Said::by(command).await;
    assert_eq!((said.code, sorted(said.stdout())), (1, vec!["localhost: hi", "named: hi"]));
    let lines = summary(&said);
    assert_eq!(lines[0], "2 of 3 ok, 1 unreachable");
    assert!(
        lines[1].starts_with("  alias: unreachable: ") && lines[1].contains(" is not for alias, but for "),
        "{lines:?}"
    );
    assert!(lines[2].contains("select one of the names in the certificate with --server-name"), "{lines:?}");
    // a flag is for all of them
    let mut command = fleet.telexec(&["-q", "--inventory", file.to_str().unwrap(), "--server-name", "localhost"]);
    command.args(credentials(&fleet)).args(["-a", "--", "echo", "hi"]).env("TELEXEC_CONFIG", "/dev/null");
    assert_eq!(Said::by(command).await.answer().lines().count(), 3);
}

#[tokio::test]
async fn names_that_are_targets_of_the_configuration_are_those() {
    let fleet = Fleet::of(1);
    let file = fleet.path().join("hosts");
    std::fs::write(&file, "[app]\nweb01 ansible_host=192.0.2.1\na telexec_target=other ansible_host=192.0.2.1\n")
        .unwrap();
    let said =
        fleet.say(&["-q", "--inventory", file.to_str().unwrap(), "-g", "app", "-c", "echo ${KIND:-usual}"]).await;
    assert_eq!(sorted(said.answer()), ["a: other", "web01: usual"]);
}

#[tokio::test]
async fn an_inventory_alone_selects_no_hosts() {
    let fleet = Fleet::of(1);
    let mark = fleet.path().join("mark");
    let file = fleet.path().join("hosts.ini");
    std::fs::write(&file, "[app]\nweb01\n[db]\nother\n").unwrap();
    let file = file.to_str().unwrap();
    for (words, hint) in [
        (&["touch"][..], "-a selects all hosts of the inventory, -w HOST,@GROUP some of them"),
        (&["app", "touch"], "telexec fleet -w @app PROGRAM"),
        (&["web01", "touch"], "telexec fleet -w web01 PROGRAM"),
        (&["all", "touch"], "telexec fleet -w @all PROGRAM"),
    ] {
        let said = fleet.say(&[&["--inventory", file], words, &[mark.to_str().unwrap()]].concat()).await;
        let text = said.failure(2);
        assert!(text.contains("no hosts given") && text.contains(hint), "{said:?}");
    }
    for args in [&["ping"][..], &["info"], &["ps"]] {
        fleet.say(&[args, &["--inventory", file]].concat()).await.failure(2);
    }
    let said = fleet.say(&["-i", file, "uptime"]).await;
    assert!(said.failure(2).contains(&format!("an inventory is --inventory {file}")), "{said:?}");
    assert!(!mark.exists());
}

#[tokio::test]
async fn the_user_of_ansible_is_not_used_and_that_is_reported() {
    let fleet = Fleet::of(2);
    let file = fleet.path().join("hosts.ini");
    std::fs::write(&file, "[app]\nweb01\nweb02\n[db]\nother\n[app:vars]\nansible_user=deploy\n").unwrap();
    let run = async |args: &[&str]| {
        fleet.say(&[&["-q", "--inventory", file.to_str().unwrap()], args, &["-c", "true"]].concat()).await
    };
    let said = run(&["-w", "@app"]).await;
    let warning = "the inventory says \"deploy\" for web01 and 1 more, but the command runs as the agent's user";
    assert!(said.code == 0 && said.remark().contains(warning), "{said:?}");
    assert_eq!(run(&["-w", "@db"]).await.answer(), "");
    let said = run(&["-w", "@app", "-l", "root", "--dry-run"]).await;
    assert!(!said.stderr().contains("ansible_user"), "{said:?}");
}

#[tokio::test]
async fn groups_and_patterns_are_not_taken_for_hosts() {
    let fleet = Fleet::of(1);
    let file = fleet.path().join("hosts.ini");
    std::fs::write(&file, "[app]\nweb01\n[db]\nother\n[same]\nsame\n").unwrap();
    let file = file.to_str().unwrap();
    for (args, hint) in [
        (&["-w", "app"][..], "write @app for its hosts, or tcp://app for"),
        (&["-a", "-x", "db"], "write @db for its hosts"),
        (&["-w", "web01,all"], "write @all for its hosts"),
        (&["-w", "app:db"], "use -w @app,@db"),
        (&["-w", "app:!db"], "use -w @app -x @db"),
        (&["-w", "app:&db"], "hosts that are in two groups at once cannot be selected"),
        (&["-w", "*"], "-a selects all hosts"),
        (&["-w", "web*"], "use ranges, such as 'db[1-9]', or a group"),
        (&["-w", "web1"], "web1 is not in the inventory; similar: web01"),
        (&["-w", "web[01-09]"], "web02 is not in the inventory; similar: web01"),
        (&["-a", "-x", "wbe01"], "wbe01 is not in the inventory; similar: web01"),
        (&["-w", "@nope"], "groups: @all, @app, @db, @same, @ungrouped"),
    ] {
        let said = fleet.say(&[&["--inventory", file, "--list-hosts"], args].concat()).await;
        assert!(said.failure(2).contains(hint), "{args:?}: {said:?}");
    }
    let empty = fleet.path().join("empty.ini");
    std::fs::write(&empty, "").unwrap();
    let said = fleet.say(&["--inventory", empty.to_str().unwrap(), "-a", "--list-hosts"]).await;
    assert!(said.failure(2).contains("empty.ini has no hosts"), "{said:?}");
    let listed = fleet.say(&["--inventory", file, "--list-hosts", "-w", "10.0.0.1,tcp://ap1,ap1:1"]).await;
    assert_eq!(listed.answer(), "10.0.0.1\ntcp://ap1\nap1:1\n");
    // a group may be called as its host
    assert_eq!(fleet.say(&["--inventory", file, "--list-hosts", "-w", "same"]).await.answer(), "same\n");
}

#[tokio::test]
async fn one_word_is_a_file_and_never_a_command() {
    let fleet = Fleet::of(1);
    executable(fleet.path(), "hsots", "#!/bin/sh\ntouch mark; echo '[]'");
    let mut command = fleet.telexec(&["-a", "--inventory", "hsots", "--", "true"]);
    let path = format!("{}:{}", fleet.path().display(), std::env::var("PATH").unwrap());
    let elsewhere = tempfile::tempdir().unwrap();
    command.env("PATH", path).current_dir(elsewhere.path());
    let said = Said::by(command).await;
    assert!(said.failure(2).contains("--inventory \"hsots\": no such file"), "{said:?}");
    assert!(!elsewhere.path().join("mark").exists());
}

#[tokio::test]
async fn what_is_no_inventory_is_reported() {
    let fleet = Fleet::of(1);
    let file = fleet.path().join("inventory.yml");
    for (text, why) in [
        ("plugin: aws_ec2\n", "ansible-inventory -i FILE --list"),
        ("web: {hosts: [a]}\n", "hosts is not a mapping"),
        ("web: {hosts: {a: {ansible_host: '{{ x }}'}}}\n", "a: ansible_host: the template"),
        ("web: {hosts: {a: {telexec_port: ssh}}}\n", "a: telexec_port: \"ssh\" is not a port"),
        ("web: {hosts: {a: {telexec_target: local}}}\n", "telexec exec local"),
    ] {
        std::fs::write(&file, text).unwrap();
        let said = fleet.say(&["--inventory", file.to_str().unwrap(), "-a", "-c", "true"]).await;
        assert!(said.failure(2).contains(why), "{text}: {said:?}");
    }
    std::fs::write(&file, "web: {host: {a: }, hosts: {web01: }}\n").unwrap();
    let said = fleet.say(&["-qa", "--inventory", file.to_str().unwrap(), "--", "true"]).await;
    assert!(said.code == 0 && said.stderr().contains("group web: skipped host: expected hosts"), "{said:?}");
}

/// An inventory of several files, with ranges, nested groups, variables everywhere, comments and quotes.
fn write_inventory(directory: &Path) {
    for (path, text) in [
        (
            "prod/01-hosts.ini",
            "# production\nlone telexec_target='unix:///run/a b.sock'\nbastion:2222\n\n\
             [web]\nweb[08:11].example.org ansible_host=10.0.0.1 # first\nweb[a:e:2]-x:22 telexec_port=\"7001\"\n\
             [db]\ndb1 ansible_host=\"10.0.1.1\" note='a # b' other=x#y\ndb2 ansible_port=2200\n\
             [eu:children]\nweb\ndb # both\n[db:vars]\ntelexec_port = '7002'\ntelexec_server_name=db.example.org\n\
             [eu:vars]\ntelexec_port=7003\nansible_host=10.9.9.9\n[all:vars]\ntelexec_server_name = all.example.org\n",
        ),
        (
            "prod/02-more.yml",
            "eu:\n  children:\n    cache:\n      hosts:\n        cache[1:2]: &defaults {telexec_port: 7004}\n\
             \x20       cache3:\n          <<: *defaults\n          ansible_host: 10.2.0.3\n        '10.0.5.1':\n\
             \x20     vars: {ansible_group_priority: 5, telexec_server_name: cache}\nus:\n  hosts:\n    cache1:\n    db2:\n\
             \x20 vars: {ansible_host: 10.3.0.1}\nempty:\n",
        ),
        ("prod/group_vars/all.yml", "telexec_port: 7000\nlist: [1, 2]\n"),
        ("prod/group_vars/eu/10.yml", "ansible_host: 10.8.8.8\n"),
        ("prod/group_vars/eu/20.yaml", "telexec_port: '7008'\n"),
        ("prod/host_vars/db1.yml", "ansible_host: '{{ inventory_hostname }}.internal'\n"),
        ("prod/README.md", "no inventory\n"),
    ] {
        let path = directory.join(path);
        std::fs::create_dir_all(path.parent().unwrap()).unwrap();
        std::fs::write(path, text).unwrap();
    }
}

impl Fleet {
    /// Where each host of the inventory is, and the name of its certificate: what a start in the background notes.
    async fn places(&self, inventory: &str) -> BTreeMap<String, (String, Option<String>)> {
        let started = self.say(&["-qda", "--inventory", inventory, "-t", "1ms", "-c", "true"]).await;
        let id = started.stdout().trim_end();
        let record = std::fs::read_to_string(self.path().join(format!("state/telexec/fleets/{id}.json"))).unwrap();
        let record: Value = serde_json::from_str(&record).unwrap();
        let hosts = record["hosts"].as_array().unwrap().iter();
        let text = |value: &Value| value.as_str().map(str::to_owned);
        let host = |host: &Value| {
            (text(&host["name"]).unwrap(), (text(&host["address"]).unwrap(), text(&host["server_name"])))
        };
        hosts.map(host).collect()
    }
}

#[tokio::test]
async fn ansible_reads_the_same_from_the_same_files() {
    let python = std::env::var_os("ANSIBLE_PYTHON");
    let python = python.expect("ANSIBLE_PYTHON names no Python that has Ansible: run tests/run, which installs it");
    let fleet = Fleet::of(1);
    // its configuration would be the name of all certificates
    let config = fleet.path().join("config.toml");
    let toml = std::fs::read_to_string(&config).unwrap().replace("server_name = 'localhost'\n", "");
    std::fs::write(&config, toml).unwrap();
    write_inventory(fleet.path());
    let directory = fleet.path().join("prod");
    let mut ansible = Command::new(python);
    ansible.args(["-m", "ansible", "inventory", "--list", "-i"]).arg(&directory);
    // not the configuration of this machine
    let settings = fleet.path().join("ansible.cfg");
    std::fs::write(&settings, "").unwrap();
    ansible.env("ANSIBLE_CONFIG", settings).env("HOME", fleet.path()).current_dir(fleet.path());
    let output = within(ansible.output()).await.unwrap();
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    let theirs: Value = serde_json::from_slice(&output.stdout).unwrap();
    let file = fleet.path().join("theirs.json");
    std::fs::write(&file, &output.stdout).unwrap();
    let (ours, command) = (directory.to_str().unwrap(), format!("cat {}", file.display()));

    for group in theirs.as_object().unwrap().keys().filter(|name| *name != "_meta") {
        let listed = async |source: &str| {
            let said = fleet.say(&["--list-hosts", "--inventory", source, "-g", group]).await;
            sorted(said.stdout()).join(" ")
        };
        assert_eq!(listed(ours).await, listed(&command).await, "{group}");
    }
    let places = fleet.places(ours).await;
    assert_eq!(places, fleet.places(&command).await);
    let place = |name: &str| (places[name].0.as_str(), places[name].1.as_deref());
    assert_eq!(places.len(), 15);
    assert_eq!(place("db1"), ("tcp://db1.internal:7008", Some("db.example.org")));
    assert_eq!(place("web08.example.org"), ("tcp://10.0.0.1:7008", Some("all.example.org")));
    assert_eq!(place("lone"), ("unix:///run/a b.sock", None));
}
