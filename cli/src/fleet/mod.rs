//! `telexec fleet`: one command on many machines.

pub(crate) mod nodeset;
