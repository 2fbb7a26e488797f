use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::symlink;
use std::path::{Path, PathBuf};

use prost::Message;
use tempfile::TempDir;

use super::message::*;
use crate::frame::{self, Kind};
use crate::message::{Access, Answer, Outcome, Question, Request, Task};
use crate::serve;

struct Scene(TempDir);

impl Scene {
    /// With these files; each name and its content.
    fn new(files: &[(&str, &str)]) -> Self {
        let scene = Self(tempfile::tempdir().unwrap());
        for (name, content) in files {
            let path = scene.path(name);
            std::fs::create_dir_all(path.parent().unwrap()).unwrap();
            std::fs::write(path, content).unwrap();
        }
        scene
    }

    fn path(&self, name: &str) -> PathBuf {
        self.0.path().canonicalize().unwrap().join(name)
    }

    fn task(&self, glob: &str, regex: Option<&str>) -> SearchTask {
        SearchTask {
            path: self.path("").as_os_str().as_bytes().strip_suffix(b"/").unwrap().to_vec(),
            glob: glob.to_owned(),
            regex: regex.map(str::to_owned),
            max_matches: 1000,
            max_bytes: 1 << 20,
            max_file_bytes: 1 << 20,
            max_line_bytes: 4096,
            ..SearchTask::default()
        }
    }

    /// Names below the directory, or lines as `name:number:text`, of context with `-`.
    fn short(&self, found: Vec<Found>) -> Vec<String> {
        let root = self.path("");
        let short = |path: &[u8]| {
            let path = path.strip_prefix(root.as_os_str().as_bytes()).unwrap_or(path);
            String::from_utf8_lossy(path).into_owned()
        };
        let mut all = Vec::new();
        for found in found {
            all.extend(found.files.iter().map(|file| short(&file.path)));
            for one in found.matches {
                let path = short(&one.path);
                all.extend(one.lines.iter().map(|line| {
                    let mark = if line.is_context { '-' } else { ':' };
                    format!("{path}{mark}{}{mark}{}", line.number, String::from_utf8_lossy(&line.text))
                }));
            }
        }
        all
    }

    fn found(&self, task: SearchTask) -> Vec<String> {
        self.short(searched(task).0)
    }
}

fn answers(output: &[u8]) -> (Vec<Question>, Vec<Outcome>) {
    let (mut from, mut data, mut questions, mut outcomes) = (output, Vec::new(), Vec::new(), Vec::new());
    while let Some(kind) = frame::read(&mut from, &mut data).unwrap() {
        match kind {
            Kind::Question => questions.push(Question::decode(&data[..]).unwrap()),
            Kind::Answer => outcomes.push(Answer::decode(&data[..]).unwrap().outcome.unwrap()),
            other => panic!("{other:?}"),
        }
    }
    (questions, outcomes)
}

fn outcomes(task: SearchTask) -> Vec<Outcome> {
    let mut input = Vec::new();
    let request = Request { asks: false, task: Some(Task::Search(task)), ..Request::default() };
    frame::write(&mut input, Kind::Request, &request.encode_to_vec()).unwrap();
    let mut output = Vec::new();
    serve(&input[..], &mut output).unwrap();
    answers(&output).1
}

fn searched(task: SearchTask) -> (Vec<Found>, Searched) {
    let mut found = Vec::new();
    for outcome in outcomes(task) {
        match outcome {
            Outcome::Found(one) => found.push(one),
            Outcome::Searched(end) => return (found, end),
            other => panic!("{other:?}"),
        }
    }
    panic!("it has no end")
}

#[test]
fn globs_find_what_gitignore_would_mean() {
    let scene = Scene::new(&[
        ("a.rs", ""),
        ("src/b.rs", ""),
        ("src/deep/c.rs", ""),
        ("src/deep/c.txt", ""),
        ("src/D.RS", ""),
        ("x[1].rs", ""),
    ]);
    let all = ["a.rs", "src/D.RS", "src/b.rs", "src/deep/c.rs", "src/deep/c.txt", "x[1].rs"];
    for (glob, found) in [
        ("", &all[..]),
        ("**", &all),
        ("*.rs", &["a.rs", "src/b.rs", "src/deep/c.rs", "x[1].rs"]),
        ("/*.rs", &["a.rs", "x[1].rs"]),
        ("src/*.rs", &["src/b.rs"]),
        ("src/**/*.rs", &["src/b.rs", "src/deep/c.rs"]),
        ("**/deep/**", &["src/deep/c.rs", "src/deep/c.txt"]),
        ("c.{rs,txt}", &["src/deep/c.rs", "src/deep/c.txt"]),
        ("[ab].rs", &["a.rs", "src/b.rs"]),
        ("x\\[1\\].rs", &["x[1].rs"]),
        ("!*.rs", &["src/D.RS", "src/deep/c.txt"]),
        ("*/", &["src", "src/deep"]),
        ("/*/", &["src"]),
        ("none", &[]),
    ] {
        assert_eq!(scene.found(scene.task(glob, None)), found, "{glob}");
    }
    let any_case = SearchTask { case_insensitive: true, ..scene.task("*.rs", None) };
    assert_eq!(scene.found(any_case).len(), 5);
}

#[test]
fn lines_come_with_numbers_and_those_around_them() {
    let text = "one\ntwo\r\nthree\nfour\nfive\nsix\nseven";
    let scene = Scene::new(&[("a", text), ("b", "three\n"), ("c", "nothing\n")]);
    assert_eq!(scene.found(scene.task("", Some("^t.*[eo]$"))), ["a:3:three", "b:1:three"]);
    let around = SearchTask { before_context: 1, after_context: 1, ..scene.task("a", Some("two|seven")) };
    assert_eq!(scene.found(around), ["a-1-one", "a:2:two", "a-3-three", "a-6-six", "a:7:seven"]);
    let any_case = SearchTask { case_insensitive: true, ..scene.task("b", Some("THREE")) };
    assert_eq!(scene.found(any_case), ["b:1:three"]);
    let lines = SearchTask { multiline: true, ..scene.task("a", Some("three.*five")) };
    assert_eq!(scene.found(lines), ["a:3:three", "a:4:four", "a:5:five"]);
    let (_, end) = searched(scene.task("", Some("e")));
    assert_eq!((end.files_searched, end.matches, end.limit_reached), (3, 5, false));
    // one file alone
    let one = SearchTask { path: scene.path("b").as_os_str().as_bytes().to_vec(), ..scene.task("", Some("h")) };
    assert_eq!(scene.found(one.clone()), ["b:1:three"]);
    assert_eq!(scene.found(SearchTask { regex: None, ..one }), ["b"]);
}

#[test]
fn what_git_ignores_and_hidden_names_are_left_out() {
    let scene = Scene::new(&[
        (".git/config", "x"),
        (".gitignore", "*.log\nbuild/\n!keep.log\n[malformed\n"),
        ("a.log", "x"),
        ("keep.log", "x"),
        ("build/a", "x"),
        ("src/.gitignore", "/generated\n!b.log\n"),
        ("src/.hidden", "x"),
        ("src/a", "x"),
        ("src/b.log", "x"),
        ("src/generated", "x"),
        ("src/deep/generated", "x"),
        ("src/deep/.ignore", "none\n"),
        ("src/deep/none", "x"),
    ]);
    let plain = ["keep.log", "src/a", "src/b.log", "src/deep/generated"];
    assert_eq!(scene.found(scene.task("", None)), plain);
    assert_eq!(scene.found(scene.task("", Some("x"))).len(), plain.len());
    let ignored = SearchTask { include_ignored: true, ..scene.task("", None) };
    assert_eq!(scene.found(ignored.clone()).len(), 8);
    let hidden = SearchTask { include_hidden: true, ..scene.task("", None) };
    assert_eq!(scene.found(hidden).len(), plain.len() + 4);
    assert_eq!(scene.found(SearchTask { include_hidden: true, ..ignored }).len(), 13);
    // what the directories above it say, as far as the repository goes
    let below =
        |name: &str| SearchTask { path: scene.path(name).as_os_str().as_bytes().to_vec(), ..scene.task("", None) };
    assert_eq!(scene.found(below("src")), ["src/a", "src/b.log", "src/deep/generated"]);
    assert_eq!(scene.found(below("build")), ["build/a"]);
}

#[test]
fn limits_are_kept_and_told() {
    let many: String = (0..2000).map(|number| format!("line {number}\n")).collect();
    let scene = Scene::new(&[("a", &many), ("b", &many), ("long", &"x".repeat(10_000))]);
    let some = SearchTask { max_matches: 3, ..scene.task("[ab]", Some("line")) };
    let (found, end) = searched(some);
    assert_eq!(scene.short(found), ["a:1:line 0", "a:2:line 1", "a:3:line 2"]);
    assert!(end.limit_reached && end.matches == 3);
    let exactly = SearchTask { max_matches: 2000, ..scene.task("a", Some("line")) };
    assert!(!searched(exactly).1.limit_reached);
    let each = SearchTask { max_matches_per_file: 1, ..scene.task("[ab]", Some("line")) };
    let (found, end) = searched(each);
    assert_eq!(scene.short(found), ["a:1:line 0", "b:1:line 0"]);
    assert!(!end.limit_reached);
    let bytes = SearchTask { max_bytes: 500, ..scene.task("", Some("line")) };
    let (found, end) = searched(bytes);
    let sent: usize =
        found.iter().flat_map(|found| &found.matches).flat_map(|one| &one.lines).map(|l| l.text.len()).sum();
    assert!(end.limit_reached && sent > 300 && sent <= 500, "{sent}");
    let (found, end) = searched(SearchTask { max_matches: 1, ..scene.task("", None) });
    assert_eq!((scene.short(found), end.limit_reached), (vec!["a".to_owned()], true));
    let (found, _) = searched(scene.task("long", Some("x")));
    let line = &found[1].matches[0].lines[0];
    assert_eq!((line.text.len(), line.is_cut), (4096, true));
    let small = SearchTask { max_file_bytes: 9_999, ..scene.task("", Some("line|x")) };
    assert_eq!(searched(small).1.skipped_too_large, 3);
}

#[test]
fn patterns_that_do_not_compile_name_their_field() {
    let scene = Scene::new(&[("a", "x")]);
    let huge = "(?:a{1000}){1000}";
    for (glob, regex, is_regex, reason) in [
        ("", Some("a("), true, "unclosed group"),
        ("", Some(huge), true, "size limit"),
        ("", Some("a\\nb"), true, "set multiline"),
        ("[a", Some("x"), false, "unclosed"),
        ("{a", None, false, "unclosed"),
        (&"{".repeat(4000), None, false, "unclosed"),
        (&format!("{}a{}", "{".repeat(2000), "}".repeat(2000)), None, false, "too large"),
    ] {
        let path = b"/nowhere".to_vec();
        let outcomes = outcomes(SearchTask { path, ..scene.task(glob, regex) });
        let [Outcome::Malformed(malformed)] = &outcomes[..] else { panic!("{glob:.9} {regex:?}: {outcomes:?}") };
        assert_eq!(malformed.is_regex, is_regex);
        assert!(malformed.reason.contains(reason) && !malformed.reason.contains('\n'), "{}", malformed.reason);
    }
}

#[test]
fn odd_files_are_survived() {
    let scene = Scene::new(&[("dir/file", "needle"), ("binary", "needle\0"), ("new\nline", "needle")]);
    let odd = scene.path("").join(std::ffi::OsStr::from_bytes(b"odd\xff"));
    std::fs::write(odd, "needle\n").unwrap();
    symlink(".", scene.path("dir/round")).unwrap();
    symlink("..", scene.path("dir/up")).unwrap();
    symlink("nowhere", scene.path("dangling")).unwrap();
    symlink("dir", scene.path("again")).unwrap();
    for fifo in ["fifo", ".gitignore"] {
        rustix::fs::mkfifoat(rustix::fs::CWD, scene.path(fifo), rustix::fs::Mode::RWXU).unwrap();
    }
    std::os::unix::net::UnixListener::bind(scene.path("socket")).unwrap();
    // and sparse
    std::fs::File::create(scene.path("large")).unwrap().set_len(1 << 40).unwrap();
    let (found, end) = searched(scene.task("", Some("needle")));
    assert_eq!(scene.short(found), ["dir/file:1:needle", "new\nline:1:needle", "odd\u{fffd}:1:needle"]);
    assert_eq!((end.skipped_binary, end.skipped_too_large, end.skipped_unreadable), (1, 1, 0));
    let follow = SearchTask { follow_links: true, ..scene.task("", Some("needle")) };
    let found = scene.found(follow);
    assert_eq!(found, ["again/file:1:needle", "new\nline:1:needle", "odd\u{fffd}:1:needle"]);
    let names = scene.found(scene.task("", None));
    assert!(["fifo", "socket", "dangling", "dir/round"].iter().all(|name| names.contains(&(*name).to_owned())));
    for special in ["/dev/zero", scene.path("fifo").to_str().unwrap()] {
        let path = special.as_bytes().to_vec();
        let outcomes = outcomes(SearchTask { path, ..scene.task("", Some("x")) });
        assert!(matches!(&outcomes[..], [Outcome::Failed(failed)] if failed.operation == "read"), "{outcomes:?}");
    }
    // files there come and go, block, fail, and have no size
    let proc = SearchTask { path: b"/proc/self".to_vec(), ..scene.task("", Some("^Name:")) };
    assert!(matches!(&outcomes(proc)[..], [Outcome::Failed(_)] | [.., Outcome::Searched(_)]));
    let parent = format!("/proc/{}", rustix::process::getppid().unwrap().as_raw_nonzero());
    let proc = SearchTask { path: parent.into_bytes(), ..scene.task("/status", Some("^Name:")) };
    assert_eq!(searched(proc).1.matches, 1);
}

#[test]
fn each_directory_and_each_file_is_asked_about_by_its_real_path() {
    let scene = Scene::new(&[
        ("closed/a", "needle"),
        ("open/.gitignore", "none"),
        ("open/a", "needle"),
        ("open/b", "needle"),
        ("z", "needle"),
    ]);
    symlink("../closed", scene.path("open/link")).unwrap();
    let task = SearchTask { asks_each: true, follow_links: true, ..scene.task("", Some("needle")) };
    let root = scene.path("");
    let root = Path::new(root.to_str().unwrap().trim_end_matches('/'));
    let asked = [
        (Access::List, root.to_owned(), 1),
        (Access::List, scene.path("closed"), 0),
        (Access::List, scene.path("open"), 1),
        (Access::Read, scene.path("open/.gitignore"), 1),
        (Access::Read, scene.path("open/a"), 1),
        (Access::Read, scene.path("open/b"), 0),
        (Access::Read, scene.path("z"), 1),
    ];
    let mut input = Vec::new();
    let request = Request { asks: true, task: Some(Task::Search(task)), ..Request::default() };
    frame::write(&mut input, Kind::Request, &request.encode_to_vec()).unwrap();
    for (_, _, verdict) in &asked {
        frame::write(&mut input, Kind::Verdict, &[*verdict]).unwrap();
    }
    let mut output = Vec::new();
    serve(&input[..], &mut output).unwrap();
    let (questions, outcomes) = answers(&output);
    let questions: Vec<_> = questions.iter().map(|one| (one.access(), one.path.clone())).collect();
    let expected = asked.iter().map(|(access, path, _)| (*access, path.as_os_str().as_bytes().to_vec()));
    assert_eq!(questions, expected.collect::<Vec<_>>());
    let Some(Outcome::Searched(end)) = outcomes.last() else { panic!("{outcomes:?}") };
    assert_eq!((end.skipped_denied, end.files_searched, end.matches), (2, 2, 2));
}
