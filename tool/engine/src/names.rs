//! Where the names of users, groups and machines are looked up: nsswitch.conf(5).
#![allow(unsafe_code)]

use std::ffi::{CStr, c_char, c_int};

/// What the C library has in itself; for all else it loads libraries.
const BUILT_IN: [(&CStr, &CStr); 4] =
    [(c"passwd", c"files"), (c"group", c"files"), (c"initgroups", c"files"), (c"hosts", c"files dns")];

/// From now on looks users and groups up in their files, and machines in theirs and the DNS, whatever nsswitch.conf(5)
/// says. For programs that are linked statically, before they start threads: glibc would load the libraries that the
/// file names, and with them the machine's own glibc beside the one in the program, which ends the process by a fault.
pub fn look_up_in_files() {
    unsafe extern "C" {
        fn __nss_configure_lookup(database: *const c_char, services: *const c_char) -> c_int;
    }
    for (database, services) in BUILT_IN {
        // SAFETY: both are C strings, which it copies. It fails only for names of databases that it does not know.
        unsafe { __nss_configure_lookup(database.as_ptr(), services.as_ptr()) };
    }
}
