//! OpenSSH's `sftp`, unmodified, with the server of this crate behind it.
#![cfg(target_os = "linux")]
#![allow(clippy::unwrap_used, clippy::panic, clippy::indexing_slicing, reason = "tests fail so")]

use std::ffi::OsString;
use std::io::Write;
use std::os::unix::ffi::OsStringExt;
use std::os::unix::fs::{MetadataExt, PermissionsExt};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use tempfile::TempDir;

/// A directory where the server begins, and one for the client.
struct Scene {
    _directory: TempDir,
    remote: PathBuf,
    local: PathBuf,
}

impl Scene {
    fn new() -> Self {
        let directory = tempfile::tempdir().unwrap();
        let root = directory.path().canonicalize().unwrap();
        let (remote, local) = (root.join("remote"), root.join("local"));
        std::fs::create_dir(&remote).unwrap();
        std::fs::create_dir(&local).unwrap();
        Self { _directory: directory, remote, local }
    }

    /// What the client says. It ends with the first command that fails, unless that begins with `-`.
    fn sftp(&self, commands: &str) -> String {
        self.sftp_with(&[], commands)
    }

    fn sftp_with(&self, flags: &[&str], commands: &str) -> String {
        let mut client = Command::new("sftp")
            .args(flags)
            .args(["-q", "-b", "-", "-D"])
            .arg(server())
            .current_dir(&self.remote)
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .stderr(Stdio::piped())
            .spawn()
            .unwrap_or_else(|error| panic!("sftp does not start ({error}): install openssh-client"));
        let commands = format!("lcd {}\n{commands}\n", self.local.display());
        client.stdin.take().unwrap().write_all(commands.as_bytes()).unwrap();
        let output = client.wait_with_output().unwrap();
        let said = [output.stdout, output.stderr].concat();
        let said = String::from_utf8_lossy(&said).into_owned();
        assert!(output.status.success(), "{} for:\n{commands}\n{said}", output.status);
        said
    }
}

/// The example, which cargo builds with the tests, beside them.
fn server() -> PathBuf {
    let test = std::env::current_exe().unwrap();
    let server = test.parent().and_then(Path::parent).unwrap().join("examples/sftp_server");
    assert!(server.exists(), "{} is not there: cargo build -p telexec-files --examples", server.display());
    server
}

/// Bytes that are like no others at another place.
fn content(length: usize) -> Vec<u8> {
    (0..length as u32 / 4).flat_map(|n| n.wrapping_mul(2_654_435_761).to_le_bytes()).collect()
}

/// Names and contents of all files below, sorted.
fn tree(root: &Path) -> Vec<(OsString, Vec<u8>)> {
    let mut files = Vec::new();
    for entry in std::fs::read_dir(root).unwrap().map(Result::unwrap) {
        if entry.file_type().unwrap().is_dir() {
            files.extend(tree(&entry.path()).into_iter().map(|(name, content)| {
                let path = Path::new(&entry.file_name()).join(name);
                (path.into_os_string(), content)
            }));
        } else {
            files.push((entry.file_name(), std::fs::read(entry.path()).unwrap()));
        }
    }
    files.sort();
    files
}

#[test]
fn files_are_put_fetched_and_gone_on_with() {
    let scene = Scene::new();
    let content = content(20_000_000);
    std::fs::write(scene.local.join("file"), &content).unwrap();
    std::fs::set_permissions(scene.local.join("file"), PermissionsExt::from_mode(0o640)).unwrap();
    std::fs::write(scene.local.join("begun"), &content[..7_000_001]).unwrap();
    std::fs::write(scene.remote.join("begun"), &content[..3_000_007]).unwrap();
    scene.sftp("put -p file\nget file back\nreget file begun\nreput file begun");
    let is_whole = |path: PathBuf| assert!(std::fs::read(&path).unwrap() == content, "{}", path.display());
    is_whole(scene.remote.join("file"));
    is_whole(scene.local.join("back"));
    is_whole(scene.local.join("begun"));
    is_whole(scene.remote.join("begun"));
    // more requests in flight than a socket holds
    scene.sftp_with(&["-B", "4096", "-R", "1000"], "get file small\nput small small");
    is_whole(scene.local.join("small"));
    is_whole(scene.remote.join("small"));
    let put = scene.remote.join("file").metadata().unwrap();
    let from = scene.local.join("file").metadata().unwrap();
    assert_eq!((put.mode(), put.mtime()), (from.mode(), from.mtime()));
    // by the server
    scene.sftp("cp file copy");
    is_whole(scene.remote.join("copy"));
}

#[test]
fn names_of_any_bytes_come_back() {
    let scene = Scene::new();
    let odd = scene.local.join("odd");
    std::fs::create_dir_all(odd.join("deeper/still")).unwrap();
    for name in [&b"new\nline"[..], b"\xff\xfe", b" ", b"quote'\"\\", b"*[?", b"deeper/still/caf\xc3\xa9", &[b'n'; 255]]
    {
        std::fs::write(odd.join(OsString::from_vec(name.to_vec())), name).unwrap();
    }
    scene.sftp("put -r odd\nget -r odd back");
    assert_eq!(tree(&scene.remote.join("odd")), tree(&odd));
    assert_eq!(tree(&scene.local.join("back")), tree(&odd));
    let said = scene.sftp("ls -l odd\nls -1 odd/deeper\n-rm odd/*\nls -1 odd");
    assert!(said.contains("\\377\\376"), "{said}");
    // what is left is the directory
    assert_eq!(std::fs::read_dir(scene.remote.join("odd")).unwrap().count(), 1);
}

#[test]
fn names_are_made_changed_listed_and_removed() {
    let scene = Scene::new();
    std::fs::write(scene.local.join("file"), "content").unwrap();
    let said = scene.sftp(
        "mkdir dir\nput file dir/file\nchmod 600 dir/file\nln dir/file hard\nln -s dir/file soft\ncd dir\npwd\nls -l\n\
         cd ..\nls -la\nrename hard moved\ndf -h\nversion",
    );
    assert!(said.contains(&format!("Remote working directory: {}/dir", scene.remote.display())), "{said}");
    let lines = ["-rw-------", " file\n", "soft\n", "%Capacity", "SFTP protocol version 3"];
    assert!(lines.iter().all(|line| said.contains(line)), "{said}");
    let file = scene.remote.join("dir/file").metadata().unwrap();
    assert_eq!(
        (file.mode(), file.nlink(), file.ino()),
        (0o100_600, 2, scene.remote.join("moved").metadata().unwrap().ino())
    );
    assert_eq!(std::fs::read_link(scene.remote.join("soft")).unwrap(), Path::new("dir/file"));

    let said = scene.sftp(
        "-rmdir dir\n-mkdir dir\n-get none\n-rm none\n-chmod 600 none\n-ls none\n\
         rm dir/file\nrm soft\nrm moved\nrmdir dir",
    );
    assert!(said.contains("No such file or directory") && said.contains("Failure"), "{said}");
    assert_eq!(std::fs::read_dir(&scene.remote).unwrap().count(), 0);
}

#[test]
fn thousands_of_small_files_come_back() {
    let scene = Scene::new();
    for directory in 0..5 {
        let path = scene.local.join(format!("many/{directory}"));
        std::fs::create_dir_all(&path).unwrap();
        (0..500).for_each(|n| std::fs::write(path.join(n.to_string()), format!("{directory} {n}")).unwrap());
    }
    scene.sftp("put -r many\nget -r many back");
    let expected = tree(&scene.local.join("many"));
    assert_eq!(expected.len(), 2_500);
    assert!(tree(&scene.remote.join("many")) == expected && tree(&scene.local.join("back")) == expected);
    assert_eq!(scene.sftp("ls -1 many/3").lines().filter(|line| line.starts_with("many/3/")).count(), 500);
}
