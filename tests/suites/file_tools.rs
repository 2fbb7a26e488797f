//! The tools for files, over an agent: what models get, and what they cannot do by mistake.

use std::path::Path;
use std::sync::Arc;

use serde_json::{Value, json};
use telexec_tests::{Agent, NOBODY, directory, is_root, within};
use telexec_tool::files::FileTools;
use telexec_tool::{Tool, ToolContext, ToolResult};

/// The tools of one caller, in a directory.
struct Caller(Vec<Box<dyn Tool>>);

impl Caller {
    async fn new(agent: &Agent, directory: &Path) -> Self {
        let files = Arc::new(agent.connect().await.files());
        Self(FileTools::new(files).cwd(directory.to_str().unwrap()).max_output_characters(2_000).into_tools())
    }

    async fn call(&self, name: &str, params: Value) -> ToolResult {
        let tool = self.0.iter().find(|tool| tool.definition().name == name).unwrap();
        within(tool.execute(params, ToolContext::default())).await.unwrap()
    }

    async fn text(&self, name: &str, params: Value) -> String {
        let result = self.call(name, params).await;
        assert!(!result.is_error, "{result:?}");
        result.as_text()
    }

    /// The kind of a failure that the model sees.
    async fn failure(&self, name: &str, params: Value) -> String {
        let result = self.call(name, params).await;
        assert!(result.is_error, "{result:?}");
        result.details["error"]["kind"].as_str().unwrap().to_owned()
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_file_is_read_in_parts() {
    let (agent, here) = (Agent::start(), directory());
    let caller = Caller::new(&agent, here.path()).await;
    let text: String = (1..=300).map(|n| format!("line {n}\n")).collect();
    std::fs::write(here.path().join("long"), text).unwrap();
    let part = caller.text("read_file", json!({ "path": "long", "offset": 2, "limit": 2 })).await;
    assert_eq!(part, "     2\tline 2\n     3\tline 3\n(the file has 300 lines; continue with offset 4)");
    let end = caller.text("read_file", json!({ "path": "long", "offset": -2 })).await;
    assert_eq!(end, "   299\tline 299\n   300\tline 300");
    // no more than the answer may have
    let result = caller.call("read_file", json!({ "path": "long" })).await;
    let last = result.structured["last_line"].as_u64().unwrap();
    assert!((50..200).contains(&last) && result.as_text().len() < 2_100, "{result:?}");
    assert!(result.as_text().ends_with(&format!("continue with offset {})", last + 1)), "{result:?}");
    assert_eq!(caller.failure("read_file", json!({ "path": "long", "offset": 301 })).await, "out_of_range");
}

#[tokio::test(flavor = "multi_thread")]
async fn what_is_no_text_file_is_named() {
    let (agent, here) = (Agent::start(), directory());
    let caller = Caller::new(&agent, here.path()).await;
    std::fs::write(here.path().join("binary"), b"a\0b").unwrap();
    std::fs::write(here.path().join("empty"), b"").unwrap();
    assert_eq!(caller.failure("read_file", json!({ "path": "binary" })).await, "binary_file");
    assert_eq!(caller.text("read_file", json!({ "path": "empty" })).await, "(empty file)");
    assert_eq!(caller.failure("read_file", json!({ "path": "none" })).await, "file_not_found");
    let result = caller.call("read_file", json!({ "path": "." })).await;
    assert!(result.as_text().contains("is a directory\nHint: list_directory"), "{result:?}");
    for params in [json!({ "path": "" }), json!({ "path": "a", "offset": 0 }), json!({ "path": "a", "lines": 1 })] {
        assert_eq!(caller.failure("read_file", params).await, "invalid_tool_input");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn an_edit_needs_a_text_that_is_there_once() {
    let (agent, here) = (Agent::start(), directory());
    let caller = Caller::new(&agent, here.path()).await;
    let file = here.path().join("code");
    std::fs::write(&file, "a = 1\nb = 1\n").unwrap();
    let edit = |old: &str, new: &str| json!({ "path": "code", "old_string": old, "new_string": new });
    assert_eq!(caller.failure("edit_file", edit("= 1", "= 2")).await, "text_not_unique");
    assert_eq!(caller.failure("edit_file", edit("c = 1", "c = 2")).await, "text_not_found");
    assert_eq!(std::fs::read_to_string(&file).unwrap(), "a = 1\nb = 1\n");
    let said = caller.text("edit_file", edit("b = 1", "b = 2")).await;
    assert_eq!(said, "Edited code: 1 replacement\n     1\ta = 1\n     2\tb = 2");
    let all = json!({ "path": "code", "old_string": " = ", "new_string": "=", "replace_all": true });
    caller.text("edit_file", all).await;
    assert_eq!(std::fs::read_to_string(&file).unwrap(), "a=1\nb=2\n");
}

#[tokio::test(flavor = "multi_thread")]
async fn what_changed_since_it_was_read_is_not_overwritten() {
    let (agent, here) = (Agent::start(), directory());
    let (caller, other) = (Caller::new(&agent, here.path()).await, Caller::new(&agent, here.path()).await);
    let file = here.path().join("shared");
    std::fs::write(&file, "mine\n").unwrap();
    caller.text("read_file", json!({ "path": "shared" })).await;
    let edit = |old: &str, new: &str| json!({ "path": "shared", "old_string": old, "new_string": new });
    let write = |content: &str| json!({ "path": "shared", "content": content });
    other.text("edit_file", edit("mine", "mine, others")).await;
    assert_eq!(caller.failure("edit_file", edit("mine", "own")).await, "file_changed");
    assert_eq!(caller.failure("write_file", write("own\n")).await, "file_changed");
    assert_eq!(std::fs::read_to_string(&file).unwrap(), "mine, others\n");
    // now it knows
    caller.text("read_file", json!({ "path": "shared" })).await;
    caller.text("edit_file", edit("others", "own")).await;
    // and what it wrote itself it knows too
    assert_eq!(caller.text("write_file", write("new\n")).await, "Replaced shared (4 bytes)");
    caller.text("edit_file", edit("new", "newer")).await;
    // a file that was only touched is the same
    std::fs::File::open(&file).unwrap().set_modified(std::time::SystemTime::UNIX_EPOCH).unwrap();
    caller.text("edit_file", edit("newer", "newest")).await;
    assert_eq!(std::fs::read_to_string(&file).unwrap(), "newest\n");
}

#[tokio::test(flavor = "multi_thread")]
async fn edits_at_the_same_time_are_all_made() {
    let (agent, here) = (Agent::start(), directory());
    let caller = Caller::new(&agent, here.path()).await;
    let text: String = (0..8).map(|n| format!("<{n}>\n")).collect();
    std::fs::write(here.path().join("file"), text).unwrap();
    let edit = |n: usize| {
        caller.text(
            "edit_file",
            json!({ "path": "file", "old_string": format!("<{n}>"), "new_string": format!("[{n}]") }),
        )
    };
    futures_util::future::join_all((0..8).map(edit)).await;
    let expected: String = (0..8).map(|n| format!("[{n}]\n")).collect();
    assert_eq!(std::fs::read_to_string(here.path().join("file")).unwrap(), expected);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_file_is_written_with_its_directories() {
    let (agent, here) = (Agent::start(), directory());
    let caller = Caller::new(&agent, here.path()).await;
    let write = json!({ "path": "a/b/new", "content": "text\n" });
    assert_eq!(caller.text("write_file", write).await, "Created a/b/new (5 bytes)");
    assert_eq!(std::fs::read_to_string(here.path().join("a/b/new")).unwrap(), "text\n");
    std::os::unix::fs::symlink("b", here.path().join("a/link")).unwrap();
    std::fs::write(here.path().join("a/odd\nname"), "").unwrap();
    let listed = caller.text("list_directory", json!({ "path": "a" })).await;
    assert_eq!(listed, "b/\nlink -> b\nodd\\nname (0 bytes)");
    let listed = caller.text("list_directory", json!({ "path": "a", "limit": 1 })).await;
    assert_eq!(listed, "b/\n(output truncated after 1 entries)");
    assert_eq!(caller.failure("write_file", json!({ "path": "a/b", "content": "" })).await, "wrong_file_state");
}

#[tokio::test(flavor = "multi_thread")]
async fn files_and_lines_are_found() {
    let (agent, here) = (Agent::start(), directory());
    let caller = Caller::new(&agent, here.path()).await;
    std::fs::create_dir(here.path().join("src")).unwrap();
    std::fs::write(here.path().join("src/one.rs"), "fn a() {}\nfn b() {}\n// a\nend\nfn c() {}\n").unwrap();
    std::fs::write(here.path().join("two.rs"), "FN d() {}\n").unwrap();
    std::fs::write(here.path().join(".hidden.rs"), "fn e() {}\n").unwrap();
    let root = here.path().to_str().unwrap();
    let glob = async |params: Value| caller.text("glob", params).await.replace(&format!("{root}/"), "");
    assert_eq!(glob(json!({ "pattern": "*.rs" })).await, "src/one.rs\ntwo.rs");
    assert_eq!(glob(json!({ "pattern": format!("{root}/src/*.rs") })).await, "src/one.rs");
    assert_eq!(glob(json!({ "pattern": "*.rs", "include_hidden": true, "limit": 1 })).await.lines().count(), 2);
    assert_eq!(glob(json!({ "pattern": "*.py" })).await, "No files found");

    let grep = async |params: Value| caller.text("grep", params).await.replace(&format!("{root}/"), "");
    let path = format!("{root}/src/one.rs");
    let lines = grep(json!({ "pattern": "fn [ac]", "path": path, "context": 1 })).await;
    let expected = "src/one.rs:1:fn a() {}\nsrc/one.rs-2-fn b() {}\n--\nsrc/one.rs-4-end\nsrc/one.rs:5:fn c() {}";
    assert_eq!(lines, expected);
    let count = json!({ "pattern": "fn", "path": root, "case_insensitive": true, "output_mode": "count" });
    assert_eq!(grep(count).await, "src/one.rs:3\ntwo.rs:1");
    let files = json!({ "pattern": "fn", "path": root, "output_mode": "files_with_matches" });
    assert_eq!(grep(files).await, "src/one.rs");
    assert_eq!(grep(json!({ "pattern": "nothing" })).await, "No matches found");
    let result = caller.call("grep", json!({ "pattern": "(" })).await;
    assert!(result.as_text().contains("pattern: "), "{result:?}");
}

#[tokio::test(flavor = "multi_thread")]
async fn what_the_policy_denies_the_model_is_told() {
    let here = directory();
    std::fs::write(here.path().join("file"), "text\n").unwrap();
    let policy = format!(
        "permit(principal, action == Action::\"ReadFile\", resource) when {{ context.path like \"{}/*\" }};",
        here.path().canonicalize().unwrap().display()
    );
    let agent = Agent::builder().policy(&policy).start();
    let caller = Caller::new(&agent, here.path()).await;
    assert_eq!(caller.text("read_file", json!({ "path": "file" })).await, "     1\ttext");
    let edit = json!({ "path": "file", "old_string": "text", "new_string": "other" });
    assert_eq!(caller.failure("edit_file", edit).await, "denied");
    assert_eq!(caller.failure("write_file", json!({ "path": "file", "content": "" })).await, "denied");
    assert_eq!(caller.failure("list_directory", json!({})).await, "denied");
    assert_eq!(caller.failure("grep", json!({ "pattern": "text" })).await, "denied");
    assert_eq!(std::fs::read_to_string(here.path().join("file")).unwrap(), "text\n");
}

#[tokio::test(flavor = "multi_thread")]
async fn files_are_opened_as_the_configured_user() {
    if !is_root() {
        return eprintln!("skipped: only root can open files as another user");
    }
    let (agent, here) = (Agent::start(), directory());
    std::os::unix::fs::chown(here.path(), Some(NOBODY), None).unwrap();
    let files = Arc::new(agent.connect().await.files());
    let caller = Caller(FileTools::new(files).user("nobody").into_tools());
    let path = here.path().join("file");
    caller.text("write_file", json!({ "path": path, "content": "text\n" })).await;
    assert_eq!(std::os::unix::fs::MetadataExt::uid(&path.metadata().unwrap()), NOBODY);
    assert_eq!(caller.failure("read_file", json!({ "path": "/etc/shadow" })).await, "access_denied");
}
