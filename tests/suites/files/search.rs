//! Files are found by their names and by what is in them, as far as the caller may look.

use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::PermissionsExt;
use std::path::Path;

use futures_util::StreamExt;
use rustix::process::Signal;
use telexec_client::RemoteFiles;
use telexec_executor::{
    ExecutorError, FileErrorKind, FileTarget, Files, Found, FoundFiles, SearchQuery, SearchSummary,
};
use telexec_proto::v1::SearchFilesRequest;
use telexec_tests::{Agent, Certs, Leaf, Process, Wire, children, is_root, lines, until, within};
use tonic::Code;

use super::{failed, of_user, target};

fn names(glob: &str) -> SearchQuery {
    SearchQuery { glob: glob.to_owned(), ..SearchQuery::default() }
}

fn content(regex: &str) -> SearchQuery {
    SearchQuery { regex: Some(regex.to_owned()), ..SearchQuery::default() }
}

async fn search(files: &RemoteFiles, at: FileTarget, query: SearchQuery) -> Result<FoundFiles, ExecutorError> {
    within(files.search(at, query)).await
}

/// All that is found, below `root`: names, or `name:line`; and the end.
async fn all(mut found: FoundFiles, root: &Path) -> (Vec<String>, SearchSummary) {
    let root = [root.as_os_str().as_bytes(), b"/"].concat();
    let short = |path: &[u8]| String::from_utf8_lossy(path.strip_prefix(&root[..]).unwrap()).into_owned();
    let mut all = Vec::new();
    while let Some(one) = within(found.next()).await {
        match one.unwrap() {
            Found::File(info) => all.push(short(info.path.as_bytes())),
            Found::Matches(matches) => {
                let path = short(matches.path.as_bytes());
                all.extend(matches.lines.iter().map(|line| format!("{path}:{}", String::from_utf8_lossy(&line.text))));
            }
            Found::End(summary) => {
                assert!(within(found.next()).await.is_none());
                return (all, summary);
            }
        }
    }
    panic!("it has no end")
}

fn directory() -> (tempfile::TempDir, std::path::PathBuf) {
    let dir = tempfile::tempdir().unwrap();
    let root = dir.path().canonicalize().unwrap();
    (dir, root)
}

#[tokio::test]
async fn files_are_found_by_their_names_and_by_their_content() {
    let agent = Agent::start();
    let (files, (_dir, root)) = (agent.connect().await.files(), directory());
    std::fs::create_dir(root.join("src")).unwrap();
    std::fs::write(root.join(".gitignore"), "*.o\n").unwrap();
    let odd = std::ffi::OsStr::from_bytes(b"src/new\nline\xff.c");
    for (name, text) in [("a.c", "int main;\nint x;\n"), ("a.o", "int main"), ("src/b.h", "x\0y")] {
        std::fs::write(root.join(name), text).unwrap();
    }
    std::fs::write(root.join(odd), "int other;\n").unwrap();
    let found = search(&files, target(&root), names("*.{c,h,o}")).await.unwrap();
    let (found, end) = all(found, &root).await;
    assert_eq!(found, ["a.c", "src/b.h", "src/new\nline\u{fffd}.c"]);
    assert_eq!((end.matches, end.files_searched, end.limit_reached), (3, 3, false));
    let found = search(&files, target(&root), content("^int .*;$|x")).await.unwrap();
    let (found, end) = all(found, &root).await;
    assert_eq!(found, ["a.c:int main;", "a.c:int x;", "src/new\nline\u{fffd}.c:int other;"]);
    let expected = SearchSummary { files_searched: 2, matches: 3, skipped_binary: 1, ..SearchSummary::default() };
    assert_eq!(end, expected);

    // a pattern is looked at before any file, and what is wrong with it is told
    for (query, field, reason) in [
        (content("a("), "regex", "unclosed group"),
        (content("(?:a{1000}){1000}"), "regex", "size limit"),
        (content(&"x".repeat(17_000)), "regex", "16384 bytes"),
        (names("[a"), "glob", "unclosed"),
        (names(&"x".repeat(5000)), "glob", "4096 bytes"),
    ] {
        let invalid = search(&files, FileTarget::new("/nowhere"), query).await.err();
        let Some(ExecutorError::Invalid(invalid)) = &invalid else { panic!("{invalid:?}") };
        assert_eq!(invalid.field, field);
        assert!(invalid.reason.contains(reason), "{invalid}");
    }
    for (path, kind) in [("none", FileErrorKind::NotFound), ("a.c/x", FileErrorKind::NotFound)] {
        let missing = search(&files, target(&root.join(path)), names("")).await;
        assert_eq!(failed(missing.map(drop)).kind(), kind);
    }
    let invalid = search(&files, FileTarget::new("a\0"), names("")).await.err();
    assert!(matches!(&invalid, Some(ExecutorError::Invalid(invalid)) if invalid.field == "path"), "{invalid:?}");
    until("no process is left", async || children(agent.pid()).is_empty()).await;
}

#[tokio::test]
async fn what_the_user_may_not_read_is_left_out() {
    if !is_root() {
        return;
    }
    let agent = Agent::start();
    let (files, (dir, root)) = (agent.connect().await.files(), directory());
    std::fs::create_dir(root.join("closed")).unwrap();
    for name in ["closed/a", "secret", "open"] {
        std::fs::write(root.join(name), "needle").unwrap();
    }
    for (name, mode) in [("closed", 0o700), ("secret", 0o600)] {
        std::fs::set_permissions(root.join(name), std::fs::Permissions::from_mode(mode)).unwrap();
    }
    std::fs::set_permissions(dir.path(), std::fs::Permissions::from_mode(0o755)).unwrap();
    let found = search(&files, of_user(&root, "nobody"), content("needle")).await.unwrap();
    let (found, end) = all(found, &root).await;
    assert_eq!((found, end.skipped_unreadable), (vec!["open:needle".to_owned()], 2));
    for closed in ["closed", "secret"] {
        let closed = search(&files, of_user(&root.join(closed), "nobody"), content("needle")).await;
        assert_eq!(failed(closed.map(drop)).kind(), FileErrorKind::AccessDenied);
    }
}

#[tokio::test]
async fn what_a_policy_denies_is_left_out_and_the_audit_log_has_the_search() {
    let (certs, (_dir, root)) = (Certs::new(), directory());
    for name in ["open", "open/closed", "open/read", "other"] {
        std::fs::create_dir(root.join(name)).unwrap();
        std::fs::write(root.join(name).join("file"), "needle\nline\n").unwrap();
    }
    std::os::unix::fs::symlink("../other", root.join("open/link")).unwrap();
    let shown = root.display();
    let policy = format!(
        r#"
        permit(principal == Identity::"reader", action == Action::"ListFiles", resource)
        when {{ context.path like "{shown}/open*" }};
        permit(principal == Identity::"reader", action == Action::"ReadFile", resource)
        when {{ context.path like "{shown}/open/read/*" }};
        forbid(principal, action, resource)
        when {{ action == Action::"ListFiles" && context.path like "{shown}/open/closed*" }};
        "#
    );
    let log = root.join("audit.log");
    let config = format!("[audit]\nfile = {log:?}\nredact = ['pass\\S+']\n");
    let agent = Agent::builder().mtls(&certs).policy(policy).config(config).start();
    let files = agent.connect_as(&certs.ca.issue(Leaf::client("reader"))).await.files();
    let linked = SearchQuery { follow_links: true, ..content("needle|password") };
    let found = search(&files, target(&root.join("open")), linked).await.unwrap();
    let (found, end) = all(found, &root.join("open")).await;
    assert_eq!(found, ["read/file:needle"]);
    // a file that may not be read, and two directories
    assert_eq!((end.skipped_denied, end.files_searched), (3, 1));
    let found = search(&files, target(&root.join("open")), names("")).await.unwrap();
    assert_eq!(all(found, &root.join("open")).await.0, ["file", "link", "read/file"]);
    for (path, query) in [
        ("other", names("")),
        ("open/closed", names("")),
        ("open/file", content("needle")),
        ("none", content("needle")),
        ("open/link/", names("")),
    ] {
        let denied = search(&files, target(&root.join(path)), query).await.err();
        assert!(matches!(denied, Some(ExecutorError::Denied { .. })), "{path}: {denied:?}");
    }
    let searched = format!("\"path\":\"{shown}/open\"");
    let of_search = |line: &String| line.contains(&searched) && line.contains("\"pattern\":\"needle|[redacted]\"");
    until("the search is recorded", async || lines(&log).iter().filter(|line| of_search(line)).count() == 2).await;
    let lines = lines(&log);
    let one = |event: &str| {
        let event = format!("\"event\":\"{event}\"");
        lines.iter().filter(|line| of_search(line)).find(|line| line.contains(&event)).unwrap()
    };
    assert!(one("call").contains("\"action\":\"ListFiles\""), "{}", one("call"));
    assert!(one("file").contains("\"bytes\":6"), "{}", one("file"));
    // what was only left out is not there
    assert!(!lines.iter().any(|line| line.contains("open/read/file") || line.contains("open/closed/file")));
}

/// Files that take long to search, and have much to be found.
fn large(root: &Path) {
    let line = [&[b'x'; 999][..], b"\n"].concat();
    std::fs::write(root.join("00"), line.repeat(60_000)).unwrap();
    for number in 1..50 {
        std::fs::hard_link(root.join("00"), root.join(format!("{number:02}"))).unwrap();
    }
}

fn helper(agent: &Agent) -> Option<Process> {
    children(agent.pid()).into_iter().next()
}

#[tokio::test]
async fn one_that_is_not_read_waits_and_one_that_is_dropped_ends() {
    if !is_root() {
        return;
    }
    let agent = Agent::start();
    let (files, (_dir, root)) = (agent.connect().await.files(), directory());
    large(&root);
    let query = SearchQuery { max_matches: 1_000_000, max_bytes: 1 << 30, ..content("x") };
    let mut found = search(&files, target(&root), query).await.unwrap();
    assert!(matches!(within(found.next()).await, Some(Ok(Found::Matches(_)))));
    // it writes to its standard output, and nobody takes that
    until("it waits", async || {
        let call = helper(&agent).map(|helper| std::fs::read_to_string(format!("/proc/{}/syscall", helper.pid)));
        call.is_some_and(|call| call.is_ok_and(|call| call.split(' ').nth(1) == Some("0x1")))
    })
    .await;
    drop(found);
    until("it has ended", async || helper(&agent).is_none()).await;
}

#[tokio::test]
async fn it_ends_when_what_is_found_is_no_longer_permitted() {
    let agent = Agent::builder().policy("permit(principal, action, resource);").start();
    let (files, (_dir, root)) = (agent.connect().await.files(), directory());
    large(&root);
    let query = SearchQuery { max_matches: 1_000_000, max_bytes: 1 << 30, ..content("x") };
    let mut found = search(&files, target(&root), query).await.unwrap();
    assert!(matches!(within(found.next()).await, Some(Ok(Found::Matches(_)))));
    std::fs::write(agent.policy(), "permit(principal, action == Action::\"ListFiles\", resource);").unwrap();
    agent.signal(Signal::HUP);
    let last = loop {
        match within(found.next()).await.unwrap() {
            Ok(Found::Matches(_)) => {}
            other => break other,
        }
    };
    assert!(matches!(last, Err(ExecutorError::Denied { .. })), "{last:?}");
    until("its process has ended", async || helper(&agent).is_none()).await;
}

#[tokio::test]
async fn it_ends_at_its_deadline() {
    let agent = Agent::start();
    let (wire, (_dir, root)) = (Wire::connect(&agent).await.unwrap(), directory());
    large(&root);
    let path = root.to_str().unwrap().to_owned();
    let asked = SearchFilesRequest { path, regex: Some("(x+x+)+y".to_owned()), ..SearchFilesRequest::default() };
    let mut request = tonic::Request::new(asked);
    request.metadata_mut().insert("grpc-timeout", "200m".parse().unwrap());
    let late = match within(wire.files().search_files(request)).await {
        Ok(answers) => within(answers.into_inner().message()).await.unwrap_err(),
        Err(status) => status,
    };
    assert_eq!(late.code(), Code::DeadlineExceeded, "{late:?}");
    until("its process has ended", async || helper(&agent).is_none()).await;
}
