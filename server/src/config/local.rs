//! The engine's part of the configuration.

use std::num::NonZeroU32;

use telexec_engine::{LocalConfig, Retention, SpoolLimits};

use super::Config;

impl Config {
    /// The settings of the engine.
    pub(crate) fn local(&self) -> LocalConfig {
        // three quarters: no identity takes all from the others
        let most_executions = self.max_executions - self.max_executions / 4;
        let most_of_spool = self.spool_total_bytes - self.spool_total_bytes / 4;
        LocalConfig {
            shell: self.shell.clone(),
            working_directory: self.working_directory.clone(),
            environment: self.environment.clone(),
            kill_grace: self.kill_grace,
            max_kill_grace: self.max_kill_grace,
            max_disconnect_grace: self.max_disconnect_grace,
            default_timeout: self.default_timeout,
            max_timeout: self.max_timeout,
            max_output_bytes: self.max_output_bytes,
            max_executions: self.max_executions,
            max_executions_per_identity: self.max_executions_per_identity.map_or(most_executions, NonZeroU32::get),
            max_memory_bytes_per_identity: self.max_memory_bytes_per_identity,
            max_processes_per_identity: self.max_processes_per_identity.map(NonZeroU32::get),
            retention: Retention {
                age: self.retention_age,
                count: self.retention_count,
                bytes: self.retention_bytes,
                bytes_per_identity: self.retention_bytes_per_identity,
            },
            spool: SpoolLimits {
                execution: self.spool_max_bytes,
                identity: self.spool_bytes_per_identity.unwrap_or(most_of_spool),
                total: self.spool_total_bytes,
            },
            state_dir: self.state_dir.clone(),
            log_commands: self.log_commands,
            containment: self.containment,
            require_cgroup: self.require_containment.is_some(),
            // an agent is a process of its own, unlike an embedded engine
            may_move: true,
            command_users: self.command_users.clone(),
            dynamic_users: self.users.is_some(),
            max_private_bytes: self.max_private_bytes,
            no_new_privileges: self.no_new_privileges,
            keeper: self.kept_by.clone(),
        }
    }
}
