use proptest::prelude::*;

use super::*;

fn a_start() -> impl Strategy<Value = Start> {
    let texts = || {
        prop::collection::vec(prop::collection::vec(1_u8.., 0..20), 0..5)
            .prop_map(|texts| texts.into_iter().map(|text| CString::new(text).unwrap()).collect::<Vec<_>>())
    };
    let credentials = (any::<u32>(), any::<u32>(), prop::collection::vec(any::<u32>(), 0..5))
        .prop_map(|(uid, gid, groups)| Credentials { name: String::new(), uid, gid, groups });
    let flags =
        (any::<bool>(), any::<bool>(), any::<bool>(), any::<bool>(), any::<bool>(), any::<bool>(), 0..4_u8, 0..4_u8);
    let private = prop::option::of(any::<u64>());
    let time = || prop::option::of((0..u64::MAX).prop_map(Duration::from_micros));
    ((any::<u64>(), private, time(), time()), flags, prop::option::of(credentials), texts(), texts(), texts()).prop_map(
        |((id, private_directories, time_limit, start_by), flags, credentials, candidates, argv, environment)| {
            let (terminal, stdin, executable, chown, survives, no_new_privileges, joins, held) = flags;
            Start {
                id,
                terminal,
                stdin: stdin && !terminal,
                executable,
                joins,
                chown,
                survives,
                held,
                time_limit,
                start_by,
                purpose: argv.last().cloned().unwrap_or_default(),
                credentials,
                private_directories,
                no_new_privileges,
                cgroup: environment.first().cloned().unwrap_or_default(),
                working_directory: argv.first().cloned().unwrap_or_default(),
                candidates,
                argv,
                environment,
            }
        },
    )
}

proptest! {
    #[test]
    fn a_start_reads_back(start in a_start()) {
        let request = Request::Start(Box::new(start));
        prop_assert_eq!(Request::decode(&request.encode()), Ok(request));
    }

    #[test]
    fn a_part_of_a_start_is_malformed(start in a_start(), cut in any::<prop::sample::Index>(), more in any::<u8>()) {
        let mut message = Request::Start(Box::new(start)).encode();
        prop_assert_eq!(Request::decode(&message[..cut.index(message.len())]), Err(Malformed));
        message.push(more);
        prop_assert_eq!(Request::decode(&message), Err(Malformed));
    }

    #[test]
    fn anything_is_read_or_refused(message in prop::collection::vec(any::<u8>(), 0..200)) {
        if let Ok(request) = Request::decode(&message) {
            prop_assert_eq!(request.encode(), message.clone());
        }
        if let Ok(report) = Report::decode(&message) {
            let mut buffer = [0; REPORT_BYTES];
            prop_assert_eq!(report.encode(&mut buffer), &message[..]);
        }
    }
}

#[test]
fn requests_and_reports_read_back() {
    let numbers = [
        Request::InFile { id: 1, length: 7 },
        Request::Outlives(1),
        Request::Cancel(u64::MAX),
        Request::Release(0),
        Request::Close { id: 3, number: 2 },
        Request::Forget(4),
        Request::Reap(5),
        Request::Signal(9),
        Request::Prepare(c"/sys/fs/cgroup/x".into()),
    ];
    for request in [Request::Ready, Request::Stopping, Request::HandsOver].into_iter().chain(numbers) {
        assert_eq!(Request::decode(&request.encode()), Ok(request));
    }
    let exit = Exit {
        exited: true,
        status: 3,
        core_dumped: false,
        user_time: Duration::from_micros(5),
        system_time: Duration::from_secs(1),
        max_rss_bytes: 1 << 40,
    };
    let killed = Exit { exited: false, status: 9, core_dumped: true, ..exit };
    for report in [
        Report::Started { id: 1, pid: 2 },
        Report::NotStarted { id: 1, step: Step::Exec, errno: 2 },
        Report::Exited { id: 1, exit, at: Duration::from_micros(7) },
        Report::Exited { id: 2, exit: killed, at: Duration::ZERO },
        Report::Held { id: 3, pid: 0, present: 5 },
        Report::AllHeld,
    ] {
        let mut buffer = [0; REPORT_BYTES];
        assert_eq!(Report::decode(report.encode(&mut buffer)), Ok(report));
    }
}
