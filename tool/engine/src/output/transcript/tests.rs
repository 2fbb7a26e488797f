use super::state::{KEPT_BYTES, KEPT_BYTES_AT_END};
use telexec_executor::Event;

use super::*;
use crate::SpoolLimits;
use crate::recovery::handover;
use crate::state::disk::Disk;

/// What was kept does not count as dropped, even if it cannot be read any more.
#[tokio::test]
async fn the_owner_of_a_promoted_command_learns_of_what_was_kept_and_is_lost() {
    let state = tempfile::tempdir().unwrap();
    let (spool, _) = handover::open(Disk::new().unwrap(), Some(state.path()), SpoolLimits::default(), &mut []).unwrap();
    let transcript = Arc::new(Transcript::new(Some(spool.file("owner")), None));
    for _ in 0..8 {
        transcript.add(OutputStream::Stdout, vec![b'x'; KEPT_BYTES / 4].into());
    }
    let Some(ToKeep::Write(file, chunks)) = transcript.state().to_keep() else { panic!("it is to be kept") };
    let (end, stopped) = file.append(chunks).await;
    assert!(end == 2 * KEPT_BYTES as u64 && stopped.is_none());
    transcript.state().was_kept(end, end);
    transcript.promote();
    std::fs::remove_dir_all(spool.directory().path()).unwrap();
    let mut owner = Reader::owner(Arc::clone(&transcript));
    let in_memory = transcript.state().start();
    assert!(owner.next().await == Event::Gap(in_memory));
    let mut read = in_memory;
    while let Event::Output(output) = owner.next().await {
        read += output.data.len() as u64;
    }
    assert!(read == end && in_memory > 0);
    assert_eq!(transcript.seal(), [0; 2]);
}

/// However long its pieces were. What was read takes no more memory for that.
#[tokio::test]
async fn who_comes_late_gets_the_last_kib() {
    let transcript = Arc::new(Transcript::new(None, None));
    let mut owner = Reader::owner(Arc::clone(&transcript));
    let late = |transcript: &Transcript| transcript.end() - transcript.state().start();
    let enough = KEPT_BYTES_AT_END as u64 - 1024;
    let full = KEPT_BYTES - CHUNK_COST;
    for bytes in [KEPT_BYTES, KEPT_BYTES, 2000, full - 1, full, full + 1, 4096, 1, KEPT_BYTES] {
        transcript.add(OutputStream::Stdout, vec![b'x'; bytes].into());
        assert!(matches!(owner.next().await, Event::Output(_)));
        // asks for the next one
        assert!(transcript.find(transcript.end(), Some(0)).is_none());
        assert!(transcript.bytes() <= KEPT_BYTES, "{}", transcript.bytes());
        assert!(transcript.state().room(SMALL_WINDOW) > 0);
        assert!(late(&transcript) >= enough, "{}", late(&transcript));
    }
    transcript.complete();
    assert_eq!(transcript.seal(), [0; 2]);
    let kept = late(&transcript);
    assert!((enough..=KEPT_BYTES_AT_END as u64).contains(&kept), "{kept}");
}

/// Of what a connection breaks in the middle of nothing arrives.
#[tokio::test]
async fn who_attaches_gets_short_pieces_first() {
    let transcript = Arc::new(Transcript::new(None, None));
    let data: Vec<u8> = (0..KEPT_BYTES / 2).map(|number| (number % 251) as u8).collect();
    transcript.add(OutputStream::Stdout, data.clone().into());
    let mut reader = Reader::at(Arc::clone(&transcript), 100);
    let mut read = data[..100].to_vec();
    let mut most = 4096;
    while read.len() < data.len() {
        let Event::Output(output) = reader.next().await else { panic!("this is output") };
        assert!(output.position == read.len() as u64 && output.data.len() <= most, "{}", output.data.len());
        read.extend_from_slice(&output.data);
        most *= 2;
    }
    assert!(read == data);
    let mut owner = Reader::owner(transcript);
    assert!(matches!(owner.next().await, Event::Output(output) if output.data == data));
}
