use super::*;

/// What an agent of this version leaves. Agents that are upgraded have such files: a test that fails here needs a new
/// version of the format, not a new file.
const GOLDEN: &str = include_str!("golden.jsonl");

fn moment(seconds: u64) -> SystemTime {
    UNIX_EPOCH + Duration::new(seconds, 5)
}

fn asked(program: Program) -> registry::Asked {
    let (working_directory, user) = (Some("/srv".into()), Some("build".into()));
    let program = KeptProgram::new(program);
    registry::Asked { identity: "unix:uid=0".into(), program, working_directory, user, terminal: true, receipt: false }
}

fn ended(id: &str, cause: ExitCause) -> Ended {
    let shell = Program::Shell { text: "echo \"a\"".into(), shell: Some("dash".into()), login: true };
    let totals = |bytes| StreamTotals { bytes, dropped_bytes: 1, incomplete: true };
    let chunk = |stream, position| Chunk { stream, position, data: vec![b'x', 0xff].into() };
    Ended {
        id: id.parse().unwrap(),
        sequence: 7,
        asked: asked(shell),
        labels: [("task".to_owned(), "a".to_owned())].into(),
        fingerprint: Some([7; 32].into()),
        main: MainProcess {
            pid: 42,
            start_time: moment(1_000_000_000),
            user: "build".into(),
            working_directory: "/srv".into(),
        },
        exited: Exited {
            cause,
            signal: Signal::from_number(9),
            core_dumped: true,
            wall_time: Duration::new(1, 2),
            user_time: Duration::new(3, 4),
            system_time: Duration::new(5, 6),
            max_rss_bytes: 4096,
            stdout: totals(11),
            stderr: totals(12),
            surviving_processes: 2,
            working_directory: Some("/tmp".into()),
            end_time: moment(1_000_000_001),
            usage: telexec_executor::Usage::default(),
            receipt: None,
        },
        output: Printed {
            end: 23,
            tail: vec![chunk(OutputStream::Stdout, 19), chunk(OutputStream::Stderr, 21)],
            stored: Some(spool::Stored { name: 3, start: 5, data: 19, index: 2 }),
        },
    }
}

/// Every field, every variant.
fn all() -> Vec<Ended> {
    let little = Ended {
        asked: registry::Asked {
            working_directory: None,
            user: None,
            terminal: false,
            ..asked(Program::Argv(vec!["ls".into(), "-l".into()]))
        },
        labels: BTreeMap::new(),
        fingerprint: None,
        output: Printed { end: 0, tail: Vec::new(), stored: None },
        ..ended("little", ExitCause::Exited(3))
    };
    let causes = [
        ExitCause::Signaled,
        ExitCause::TimedOut,
        ExitCause::Cancelled,
        ExitCause::DeadlineExceeded,
        ExitCause::OutOfMemory,
        ExitCause::Shutdown,
    ];
    [little].into_iter().chain(causes.map(|cause| ended(cause.as_str(), cause))).collect()
}

#[test]
fn the_file_is_what_agents_of_this_version_write() {
    let mut written = Vec::new();
    write(&mut written, &all()).unwrap();
    assert_eq!(String::from_utf8(written).unwrap(), GOLDEN);
}

#[test]
fn what_agents_of_this_version_wrote_is_read() {
    assert_eq!(read(GOLDEN.as_bytes()).unwrap(), all());
}

/// Earlier versions have none, and refuse such a file.
#[test]
fn receipts_are_kept() {
    let mut ended = ended("signed", ExitCause::Exited(0));
    ended.asked.receipt = true;
    ended.exited.receipt = Some(Arc::new("{}".to_owned()));
    let mut written = Vec::new();
    write(&mut written, &[ended]).unwrap();
    let read = read(&*written).unwrap();
    assert!(read[0].asked.receipt && read[0].exited.receipt.as_deref().is_some_and(|receipt| receipt == "{}"));
}

#[test]
fn what_is_out_of_range_is_refused() {
    let faults = [
        ("\"signal\":9", "\"signal\":65"),
        ("\"seconds\":1000000000", "\"seconds\":18446744073709551615"),
        ("\"seconds\":1,\"nanoseconds\":2", "\"seconds\":18446744073709551615,\"nanoseconds\":4000000000"),
        ("\"little\"", "\"../little\""),
        ("BwcHBwcH", "Bwc="),
        ("\"terminal\"", "\"tty\""),
    ];
    for (from, to) in faults {
        assert!(GOLDEN.contains(from), "{from}");
        assert!(read(GOLDEN.replacen(from, to, 1).as_bytes()).is_err(), "{to}");
    }
}
