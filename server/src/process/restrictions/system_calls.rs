//! Ways around the permissions of the agent's user, and interfaces of the kernel that the agent has no use for.

use std::collections::BTreeMap;

use seccompiler::{
    BpfProgram, SeccompAction, SeccompCmpArgLen, SeccompCmpOp, SeccompCondition, SeccompFilter, SeccompRule,
};

use super::RestrictionError;

/// System calls that fail with EPERM.
const FORBIDDEN: &[libc::c_long] = &[
    // what a filter cannot see
    libc::SYS_io_uring_setup,
    libc::SYS_io_uring_enter,
    libc::SYS_io_uring_register,
    libc::SYS_unshare,
    libc::SYS_setns,
    libc::SYS_mount,
    libc::SYS_umount2,
    libc::SYS_move_mount,
    libc::SYS_open_tree,
    libc::SYS_fsopen,
    libc::SYS_fsmount,
    libc::SYS_fspick,
    libc::SYS_mount_setattr,
    libc::SYS_pivot_root,
    libc::SYS_chroot,
    libc::SYS_ptrace,
    libc::SYS_process_vm_readv,
    libc::SYS_process_vm_writev,
    libc::SYS_kcmp,
    libc::SYS_keyctl,
    libc::SYS_add_key,
    libc::SYS_request_key,
    libc::SYS_bpf,
    libc::SYS_perf_event_open,
    libc::SYS_userfaultfd,
    libc::SYS_init_module,
    libc::SYS_finit_module,
    libc::SYS_kexec_load,
];

/// System calls that take the mode of a file, and as which argument.
const WITH_MODE: &[(libc::c_long, u8)] = &[
    (libc::SYS_fchmod, 1),
    (libc::SYS_fchmodat, 2),
    (SYS_FCHMODAT2, 2),
    (libc::SYS_openat, 3),
    (libc::SYS_mknodat, 2),
    #[cfg(target_arch = "x86_64")]
    (libc::SYS_chmod, 1),
    #[cfg(target_arch = "x86_64")]
    (libc::SYS_open, 2),
    #[cfg(target_arch = "x86_64")]
    (libc::SYS_creat, 1),
    #[cfg(target_arch = "x86_64")]
    (libc::SYS_mknod, 1),
];

/// The same number on all architectures.
const SYS_FCHMODAT2: libc::c_long = 452;
/// Those that take their arguments where a filter cannot look, and for which there is another one: they fail with ENOSYS.
const UNKNOWN: &[libc::c_long] = &[libc::SYS_clone3, libc::SYS_openat2];

/// S_ISUID and S_ISGID.
const SET_ID: [u64; 2] = [0o4000, 0o2000];
/// Typing at a terminal that others read from.
const TIOCSTI: u64 = 0x5412;
const CLONE_NEWUSER: u64 = 0x1000_0000;

/// See [`restrict`](super::restrict).
pub(super) fn restrict() -> Result<(), RestrictionError> {
    let nowhere = || UNKNOWN.iter().map(|call| (*call, Vec::new())).collect();
    for (rules, errno) in [(forbidden()?, libc::EPERM), (nowhere(), libc::ENOSYS)] {
        let errno = SeccompAction::Errno(u32::try_from(errno).unwrap_or_default());
        let filter = SeccompFilter::new(rules, SeccompAction::Allow, errno, std::env::consts::ARCH.try_into()?)?;
        seccompiler::apply_filter_all_threads(&BpfProgram::try_from(filter)?)?;
    }
    Ok(())
}

fn forbidden() -> Result<BTreeMap<i64, Vec<SeccompRule>>, seccompiler::BackendError> {
    let mut rules: BTreeMap<_, _> = FORBIDDEN.iter().map(|call| (*call, Vec::new())).collect();
    for (call, argument) in WITH_MODE {
        let one = |bit| when(*argument, SeccompCmpOp::MaskedEq(bit), bit);
        rules.insert(*call, SET_ID.into_iter().map(one).collect::<Result<_, _>>()?);
    }
    rules.insert(libc::SYS_ioctl, vec![when(1, SeccompCmpOp::Eq, TIOCSTI)?]);
    rules.insert(libc::SYS_clone, vec![when(0, SeccompCmpOp::MaskedEq(CLONE_NEWUSER), CLONE_NEWUSER)?]);
    Ok(rules)
}

fn when(argument: u8, is: SeccompCmpOp, value: u64) -> Result<SeccompRule, seccompiler::BackendError> {
    SeccompRule::new(vec![SeccompCondition::new(argument, SeccompCmpArgLen::Dword, is, value)?])
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::{OpenOptionsExt, PermissionsExt};

    use super::*;
    use crate::process::restrictions::tests::alone;

    #[test]
    fn ways_around_its_user_are_closed_and_others_open() {
        alone("system_calls::tests::ways_around_its_user_are_closed_and_others_open", || {
            restrict().unwrap();
            let directory = tempfile::tempdir().unwrap();
            let path = directory.path().join("file");
            std::fs::write(&path, "").unwrap();
            let mode = |mode| std::fs::set_permissions(&path, std::fs::Permissions::from_mode(mode));
            mode(0o755).unwrap();
            let refused = |done: std::io::Result<()>| done.unwrap_err().raw_os_error() == Some(libc::EPERM);
            assert!([0o4755, 0o2755, 0o6000].into_iter().all(|set_id| refused(mode(set_id))));
            let made =
                std::fs::File::options().write(true).create_new(true).mode(0o4755).open(directory.path().join("other"));
            assert!(refused(made.map(drop)));
            let unshare = std::process::Command::new("unshare").args(["--user", "true"]).output();
            assert!(!unshare.unwrap().status.success());
            // threads, processes and files are made as before
            assert_eq!(std::thread::spawn(|| 7).join().unwrap(), 7);
            assert!(std::process::Command::new("true").status().unwrap().success());
        });
    }
}
