//! Requests to watch, and the changes reported.

/// Watches a file or a directory until the input ends.
#[derive(Clone, PartialEq, prost::Message)]
pub struct WatchTask {
    /// Which. A symbolic link is followed.
    #[prost(bytes = "vec", tag = "1")]
    pub path: Vec<u8>,
    /// Also the directories below it, those that come later too.
    #[prost(bool, tag = "2")]
    pub recursive: bool,
    /// The agent is asked about each directory below it.
    #[prost(bool, tag = "3")]
    pub asks_each: bool,
}

/// Some changes, in order.
#[derive(Clone, PartialEq, prost::Message)]
pub struct Events {
    /// Which.
    #[prost(message, repeated, tag = "1")]
    pub events: Vec<Event>,
    /// After these, some were lost.
    #[prost(bool, tag = "2")]
    pub lost: bool,
}

/// A change.
#[derive(Clone, PartialEq, prost::Message)]
pub struct Event {
    /// Which one.
    #[prost(enumeration = "Change", tag = "1")]
    pub change: i32,
    /// Begins with that of the request.
    #[prost(bytes = "vec", tag = "2")]
    pub path: Vec<u8>,
    /// The directory that it is in, without symbolic links, if that is below the one of the request.
    #[prost(bytes = "vec", tag = "3")]
    pub below: Vec<u8>,
}

/// What has happened.
#[derive(Clone, Copy, Debug, PartialEq, Eq, prost::Enumeration)]
#[repr(i32)]
pub enum Change {
    /// It has this name now.
    Created = 0,
    /// Its content.
    Written = 1,
    /// It is gone.
    Removed = 2,
    /// It has another name, or is elsewhere.
    Renamed = 3,
    /// Its mode, owner, times or number of links.
    Attributes = 4,
}
