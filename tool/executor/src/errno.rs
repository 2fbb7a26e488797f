//! Error numbers of the system, as Linux counts them: a client on another system reads them too.

use std::borrow::Cow;

pub(crate) const EPERM: i32 = 1;
pub(crate) const ENOENT: i32 = 2;
pub(crate) const EAGAIN: i32 = 11;
pub(crate) const ENOMEM: i32 = 12;
pub(crate) const EACCES: i32 = 13;
pub(crate) const EEXIST: i32 = 17;
pub(crate) const EXDEV: i32 = 18;
pub(crate) const ENOTDIR: i32 = 20;
pub(crate) const EISDIR: i32 = 21;
pub(crate) const EINVAL: i32 = 22;
pub(crate) const ENFILE: i32 = 23;
pub(crate) const EMFILE: i32 = 24;
pub(crate) const EFBIG: i32 = 27;
pub(crate) const ENOSPC: i32 = 28;
pub(crate) const EROFS: i32 = 30;
pub(crate) const ENAMETOOLONG: i32 = 36;
pub(crate) const ENOTEMPTY: i32 = 39;
pub(crate) const ELOOP: i32 = 40;
pub(crate) const EDQUOT: i32 = 122;

/// Those of starting a process (execve(2), chdir(2), clone(2), pipe(2), setrlimit(2), setgroups(2), setgid(2), setuid(2),
/// getpwnam_r(3), cgroups(7)), of files (open(2), read(2), write(2), rename(2), unlink(2)) and of sockets.
pub(crate) const NAMES: [(i32, &str); 48] = [
    (EPERM, "EPERM"),
    (ENOENT, "ENOENT"),
    (3, "ESRCH"),
    (4, "EINTR"),
    (5, "EIO"),
    (6, "ENXIO"),
    (7, "E2BIG"),
    (8, "ENOEXEC"),
    (9, "EBADF"),
    (EAGAIN, "EAGAIN"),
    (ENOMEM, "ENOMEM"),
    (EACCES, "EACCES"),
    (14, "EFAULT"),
    (15, "ENOTBLK"),
    (16, "EBUSY"),
    (EEXIST, "EEXIST"),
    (EXDEV, "EXDEV"),
    (19, "ENODEV"),
    (ENOTDIR, "ENOTDIR"),
    (EISDIR, "EISDIR"),
    (EINVAL, "EINVAL"),
    (ENFILE, "ENFILE"),
    (EMFILE, "EMFILE"),
    (25, "ENOTTY"),
    (26, "ETXTBSY"),
    (EFBIG, "EFBIG"),
    (ENOSPC, "ENOSPC"),
    (29, "ESPIPE"),
    (EROFS, "EROFS"),
    (31, "EMLINK"),
    (32, "EPIPE"),
    (34, "ERANGE"),
    (ENAMETOOLONG, "ENAMETOOLONG"),
    (38, "ENOSYS"),
    (ENOTEMPTY, "ENOTEMPTY"),
    (ELOOP, "ELOOP"),
    (61, "ENODATA"),
    (75, "EOVERFLOW"),
    (80, "ELIBBAD"),
    (84, "EILSEQ"),
    (87, "EUSERS"),
    (95, "EOPNOTSUPP"),
    (103, "ECONNABORTED"),
    (104, "ECONNRESET"),
    (110, "ETIMEDOUT"),
    (111, "ECONNREFUSED"),
    (116, "ESTALE"),
    (EDQUOT, "EDQUOT"),
];

/// Its name, such as `ENOENT`; the number itself if it has no common name.
pub(crate) fn name(errno: i32) -> Cow<'static, str> {
    let known = NAMES.iter().find(|(number, _)| *number == errno);
    known.map_or_else(|| errno.to_string().into(), |(_, name)| Cow::Borrowed(*name))
}

/// The number with this name, or this text as a number.
pub(crate) fn from_name(name: &str) -> Option<i32> {
    let known = NAMES.iter().find(|(_, known)| *known == name).map(|(number, _)| *number);
    known.or_else(|| name.parse().ok())
}

/// What it means, in lower case, such as `no such file or directory`.
pub(crate) fn text(errno: i32) -> String {
    match std::io::Error::from_raw_os_error(errno).to_string() {
        text if text.ends_with(')') => text.split(" (os error").next().unwrap_or_default().to_lowercase(),
        text => text,
    }
}
