//! The steps of becoming a program.

/// A step of becoming a program, in the order in which they are taken.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
pub enum Step {
    /// Making the process: clone(2).
    Clone,
    /// Making its session: setsid(2).
    Setsid,
    /// Entering its cgroups.
    Cgroup,
    /// Connecting its standard streams: dup2(2).
    Dup,
    /// Closing every other file: close_range(2).
    CloseRange,
    /// Setting its limits: setrlimit(2).
    Rlimit,
    /// Making namespaces of its own: unshare(2).
    Unshare,
    /// Mounting directories of its own: mount(2).
    Mount,
    /// Taking the user's groups: setgroups(2).
    Setgroups,
    /// Taking the user's own group: setgid(2).
    Setgid,
    /// Becoming the user: setuid(2).
    Setuid,
    /// Entering the working directory: chdir(2).
    Chdir,
    /// Becoming the program: execve(2).
    Exec,
}

impl Step {
    /// All of them.
    pub const ALL: [Self; 13] = [
        Self::Clone,
        Self::Setsid,
        Self::Cgroup,
        Self::Dup,
        Self::CloseRange,
        Self::Rlimit,
        Self::Unshare,
        Self::Mount,
        Self::Setgroups,
        Self::Setgid,
        Self::Setuid,
        Self::Chdir,
        Self::Exec,
    ];

    /// The step of this number.
    pub fn from_number(number: u8) -> Option<Self> {
        Self::ALL.get(usize::from(number)).copied()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn steps_have_their_numbers() {
        assert!(Step::ALL.into_iter().all(|step| Step::from_number(step as u8) == Some(step)));
        assert_eq!(Step::from_number(13), None);
    }
}
