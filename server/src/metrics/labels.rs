//! The values of labels. All are listed, so that each series exists from the beginning.

/// An enum whose variants are the values of a label.
macro_rules! label_values {
    ($(#[$doc:meta])* $name:ident { $($(#[$variant_doc:meta])* $variant:ident = $text:literal,)* }) => {
        $(#[$doc])*
        #[derive(Clone, Copy, Debug)]
        pub(crate) enum $name {
            $($(#[$variant_doc])* $variant,)*
        }

        impl $name {
            pub(super) const ALL: &[Self] = &[$(Self::$variant,)*];

            pub(crate) fn as_str(self) -> &'static str {
                match self {
                    $(Self::$variant => $text,)*
                }
            }
        }
    };
}

label_values! {
    /// Why a command or a caller was turned away.
    Refusal {
        /// Denied by the policy.
        Policy = "policy",
        /// Another identity has to approve it first.
        Approval = "approval",
        /// `max_starts_per_second`.
        Pace = "pace",
        /// A named command that is unknown, or a request that its definition does not accept.
        NamedCommand = "named_command",
        /// The audit log could not be written.
        Audit = "audit",
        /// Too many executions or calls.
        Exhausted = "exhausted",
        /// This machine does not support the request.
        Unsupported = "unsupported",
        /// `max_request_bytes_in_flight`, of all or of an identity, `max_request_fields`, or a message that is too long.
        Requests = "requests",
        /// The execution id exists already.
        Exists = "exists",
        /// The agent is shutting down.
        Shutdown = "shutdown",
        /// The caller did not wait, or something failed.
        GivenUp = "given_up",
        /// `max_connections`.
        Connections = "connections",
        /// The certificate of an open connection was revoked or has expired.
        Certificate = "certificate",
        /// The call has a token that is not accepted, or neither a token nor a certificate.
        Token = "token",
    }
}

label_values! {
    /// How the authentication of a peer ended.
    HandshakeResult {
        /// It has an identity.
        Ok = "ok",
        /// It took too long.
        Timeout = "timeout",
        /// Its source had the most pending connections.
        Displaced = "displaced",
        /// TLS failed.
        Tls = "tls",
        /// Its certificate has no usable identity.
        Nameless = "nameless",
        /// Another user, or another virtual machine, without a policy that could let it in.
        Foreign = "foreign",
        /// The credentials of its socket cannot be read.
        Credentials = "credentials",
    }
}
