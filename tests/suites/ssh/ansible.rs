//! An Ansible playbook, with `telexec-ssh` for ssh.

use std::os::unix::fs::PermissionsExt;
use std::path::Path;

use telexec_tests::is_root;

use super::{Site, ended};

const PLAYBOOK: &str = r#"
- hosts: all
  gather_facts: false
  tasks:
    - ping:
    - copy: {src: files/big, dest: "{{ there }}/copied"}
    - template: {src: template, dest: "{{ there }}/rendered"}
    - command: sh -c 'echo $MACHINE >&2; exit 4'
      register: failed
      failed_when: failed.rc != 4 or failed.stderr != 'one'
    - command: id -un
      become: true
      become_user: nobody
      when: becomes | bool
      register: user
      failed_when: user.stdout != 'nobody'
    - shell: "sleep 0.5; echo late >{{ there }}/late"
      async: 30
      poll: 0
      register: job
    - meta: reset_connection
    - async_status: {jid: "{{ job.ansible_job_id }}"}
      register: late
      until: late.finished
      retries: 100
      delay: 0.2
    - slurp: {src: "{{ there }}/late"}
      register: content
      failed_when: content.content | b64decode != "late\n"
"#;

#[tokio::test(flavor = "multi_thread")]
async fn ansible_runs_a_playbook_and_knows_who_is_unreachable() {
    let site = Site::new();
    let python = std::env::var_os("ANSIBLE_PYTHON");
    let python = python.expect("ANSIBLE_PYTHON names no Python that has Ansible: run tests/run, which installs it");
    site.write("files/big", [0xa5; 500_000]);
    site.write("template", "{{ inventory_hostname }}\n");
    site.write("playbook.yml", PLAYBOOK);
    std::fs::create_dir(site.path("there")).unwrap();
    // another user has its modules there too
    let modules = tempfile::tempdir().unwrap();
    std::fs::set_permissions(modules.path(), std::fs::Permissions::from_mode(0o1777)).unwrap();
    let inventory = format!(
        "[all]\nweb1\ngone\n[all:vars]\nansible_ssh_executable=telexec-ssh\n\
         ansible_python_interpreter=auto_silent\nansible_remote_tmp={}\nthere={}\nbecomes={}\n",
        modules.path().display(),
        site.text("there"),
        is_root()
    );
    site.write("hosts.ini", inventory);
    for pipelining in ["False", "True"] {
        let mut command = site.command(Path::new(&python).with_file_name("ansible-playbook"));
        command.args(["-i", "hosts.ini", "playbook.yml"]).env("ANSIBLE_PIPELINING", pipelining);
        let said = ended(command.env("ANSIBLE_NOCOLOR", "1")).await;
        let recap = |host: &str, end: &str| {
            said.stdout.lines().any(|line| line.starts_with(host) && line.contains(end) && line.contains("failed=0"))
        };
        assert_eq!(said.code, 4, "{said:?}");
        assert!(recap("web1", "unreachable=0") && recap("gone", "unreachable=1"), "{}", said.stdout);
        assert_eq!(std::fs::read_to_string(site.path("there/rendered")).unwrap(), "web1\n");
        assert!(std::fs::read(site.path("there/copied")).unwrap() == [0xa5; 500_000]);
        std::fs::remove_file(site.path("there/late")).unwrap();
    }
}
