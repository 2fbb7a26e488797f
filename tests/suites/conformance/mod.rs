//! What every executor must hold to, on this machine and behind gRPC.

use std::sync::Arc;

use telexec_executor::{Attach, CommandBuilder, Execution, ExecutionId, Executor};
use telexec_tests::within;

mod attaching;
mod background;
mod cgroups;
mod crowds;
mod ending;
mod exits;
mod input;
mod knowledge;
mod live_input;
mod output;
mod pipe_locks;
mod properties;
mod repeats;
mod replay;
mod signals;
mod spawning;
pub(crate) mod spooling;
mod surroundings;
mod survivors;
mod terminals;

use self::{
    ending::*, exits::*, input::*, knowledge::*, output::*, pipe_locks::*, signals::*, spawning::*, surroundings::*,
    survivors::*,
};

/// Where a case runs its commands.
pub(crate) type Machine = Arc<dyn Executor>;

async fn start(machine: &Machine, command: CommandBuilder) -> Execution {
    within(machine.execute(command.build().unwrap())).await.unwrap()
}

async fn attach(machine: &Machine, id: &ExecutionId, from: Attach) -> Execution {
    within(machine.attach(id, from)).await.unwrap()
}

telexec_tests::everywhere! {
    streams_are_kept_apart,
    output_arrives_while_the_command_runs,
    a_command_without_output_starts_and_exits,
    all_256_bytes_arrive_as_they_are,
    characters_that_are_written_in_pieces_arrive,
    alternating_lines_keep_their_order_in_each_stream,
    ten_megabytes_on_both_streams_arrive,
    a_flood_of_one_byte_writes_arrives,
    merged_output_is_one_stream_in_the_order_it_was_written,
    the_last_line_before_the_exit_arrives,
    a_slow_reader_gets_every_byte,
    the_stream_that_was_written_first_comes_first,
    output_over_the_limit_is_counted_and_dropped,
    output_at_the_limit_is_whole,
    a_hundred_commands_at_once_keep_their_output_apart,
    a_reader_that_stops_holds_up_no_other_reader,
    readers_that_stop_hold_up_no_other_calls,
    who_locks_its_output_holds_up_nobody,
    who_locks_what_was_read_holds_up_no_other_stream,
    who_locks_its_input_holds_up_nobody,
    a_survivor_that_locks_the_output_does_not_hold_the_call,

    exit_codes_are_reported,
    the_shells_own_exit_codes_are_reported,
    deaths_by_signal_are_reported,
    a_core_dump_is_reported,
    what_it_used_is_reported,
    what_all_processes_used_is_reported,
    what_it_has_used_so_far_is_reported,

    input_arrives_and_ends,
    without_input_there_is_dev_null,
    a_command_that_ignores_its_input_exits,
    a_command_that_holds_its_input_can_be_cancelled,

    arguments_are_literal,
    the_environment_is_the_base_and_nothing_else,
    the_request_adds_to_the_environment_and_replaces,
    a_cleared_environment_holds_only_what_was_asked_for,
    the_execution_id_in_the_environment_is_the_agents,
    the_key_in_the_environment_is_the_agents,
    programs_are_looked_up_in_the_agents_path,
    commands_start_in_the_working_directory,
    the_default_working_directory_is_the_home,
    only_the_standard_streams_are_open,
    the_umask_is_022,
    privileges_can_be_gained_unless_that_is_forbidden,
    signals_have_their_default_effect,
    the_command_leads_a_session_without_a_terminal,
    writing_to_a_closed_pipe_ends_the_writer,
    the_shell_can_be_chosen,
    a_login_shell_knows_that_it_is_one,
    the_last_directory_of_the_shell_is_reported,
    the_last_directory_is_only_reported_when_asked_for,

    failed_starts_report_stage_and_error,
    a_missing_interpreter_is_not_a_missing_program,
    a_program_that_is_being_written_is_busy,
    a_failed_start_leaves_no_trace,

    cancel_leaves_nothing_of_one_process,
    cancel_leaves_nothing_of_a_group,
    cancel_leaves_nothing_of_another_session,
    cancel_leaves_nothing_of_a_double_fork,
    cancel_leaves_nothing_of_nohup,
    cancel_leaves_nothing_that_ignores_sigterm,
    cancel_leaves_nothing_that_is_stopped,
    cancel_leaves_nothing_of_a_child_with_an_empty_environment,
    cancel_leaves_nothing_of_a_stubborn_child_with_an_empty_environment,
    cancel_leaves_nothing_of_processes_that_respawn,
    cancel_leaves_nothing_of_sessions_that_respawn,
    cancel_is_reported_as_the_cause,
    cancel_gives_the_grace,
    cancel_of_one_spares_the_others,
    cancel_while_it_starts_leaves_nothing,
    ending_it_again_changes_nothing,
    cancel_after_the_end_changes_nothing,
    a_timeout_keeps_the_output_and_leaves_nothing,
    a_timeout_leaves_nothing_of_processes_that_respawn,
    a_timeout_gives_the_grace,
    a_timeout_kills_after_the_grace_and_not_before,
    without_grace_it_is_killed_at_once,
    a_deadline_ends_it,
    of_timeout_and_deadline_the_earlier_wins,
    an_end_is_not_held_up_by_who_does_not_read,

    a_background_child_does_not_hold_the_call,
    a_quiet_background_child_leaves_the_output_complete,
    a_survivor_is_counted_however_young_it_is,
    a_survivor_that_writes_lives_on,
    a_survivor_that_ends_makes_it_exited,
    a_survivor_can_be_killed,
    descendants_are_ended_when_asked_for,
    descendants_that_ignore_sigterm_are_ended_when_asked_for,

    a_signal_can_be_caught,
    a_signal_reaches_other_sessions,
    sigkill_ends_all_and_is_reported,
    a_stopped_command_can_be_continued,
    a_signal_after_the_end_is_no_error,
    a_signal_to_nobody_is_not_found,

    an_id_is_used_only_once,
    of_many_starts_with_one_id_one_runs,
    a_running_command_is_described,
    an_ended_command_is_remembered,
    nobody_knows_an_unknown_id,
    lists_are_filtered_by_labels_and_state,
    lists_come_in_pages,
    a_foreign_page_token_is_refused,
}

// A part of them by way of a NATS server: those that it can change, since each needs programs of its own. Of the others these
// do not hold there: a request is one message, of 1 MiB at most; what failed to start has used its ID; a deadline is a timeout;
// and who does not read holds up nobody, since events are kept.
telexec_tests::at_place! { nats:
    streams_are_kept_apart,
    output_arrives_while_the_command_runs,
    a_command_without_output_starts_and_exits,
    all_256_bytes_arrive_as_they_are,
    ten_megabytes_on_both_streams_arrive,
    a_flood_of_one_byte_writes_arrives,
    merged_output_is_one_stream_in_the_order_it_was_written,
    a_slow_reader_gets_every_byte,
    output_over_the_limit_is_counted_and_dropped,
    a_hundred_commands_at_once_keep_their_output_apart,

    exit_codes_are_reported,
    deaths_by_signal_are_reported,
    what_it_used_is_reported,
    without_input_there_is_dev_null,
    arguments_are_literal,
    the_environment_is_the_base_and_nothing_else,
    the_last_directory_of_the_shell_is_reported,
    failed_starts_report_stage_and_error,
    a_missing_interpreter_is_not_a_missing_program,

    cancel_leaves_nothing_of_one_process,
    cancel_leaves_nothing_of_a_double_fork,
    cancel_leaves_nothing_that_ignores_sigterm,
    cancel_leaves_nothing_of_processes_that_respawn,
    cancel_is_reported_as_the_cause,
    cancel_gives_the_grace,
    cancel_of_one_spares_the_others,
    ending_it_again_changes_nothing,
    cancel_after_the_end_changes_nothing,
    a_timeout_keeps_the_output_and_leaves_nothing,

    a_background_child_does_not_hold_the_call,
    a_survivor_can_be_killed,
    a_signal_can_be_caught,
    sigkill_ends_all_and_is_reported,
    a_stopped_command_can_be_continued,
    a_signal_to_nobody_is_not_found,

    an_id_is_used_only_once,
    of_many_starts_with_one_id_one_runs,
    a_running_command_is_described,
    an_ended_command_is_remembered,
    nobody_knows_an_unknown_id,
    lists_are_filtered_by_labels_and_state,
    lists_come_in_pages,
    a_foreign_page_token_is_refused,
}

telexec_tests::contained! {
    exit_codes_are_reported,
    deaths_by_signal_are_reported,
    a_command_that_holds_its_input_can_be_cancelled,

    the_environment_is_the_base_and_nothing_else,
    commands_start_in_the_working_directory,
    only_the_standard_streams_are_open,
    the_umask_is_022,
    signals_have_their_default_effect,
    the_command_leads_a_session_without_a_terminal,
    writing_to_a_closed_pipe_ends_the_writer,

    failed_starts_report_stage_and_error,
    a_missing_interpreter_is_not_a_missing_program,
    a_program_that_is_being_written_is_busy,
    a_failed_start_leaves_no_trace,

    cancel_leaves_nothing_of_one_process,
    cancel_leaves_nothing_of_a_group,
    cancel_leaves_nothing_of_another_session,
    cancel_leaves_nothing_of_a_double_fork,
    cancel_leaves_nothing_of_nohup,
    cancel_leaves_nothing_that_ignores_sigterm,
    cancel_leaves_nothing_that_is_stopped,
    cancel_leaves_nothing_of_a_child_with_an_empty_environment,
    cancel_leaves_nothing_of_a_stubborn_child_with_an_empty_environment,
    cancel_leaves_nothing_of_processes_that_respawn,
    cancel_leaves_nothing_of_sessions_that_respawn,
    cancel_is_reported_as_the_cause,
    cancel_gives_the_grace,
    cancel_of_one_spares_the_others,
    cancel_while_it_starts_leaves_nothing,
    ending_it_again_changes_nothing,
    cancel_after_the_end_changes_nothing,
    a_timeout_leaves_nothing_of_processes_that_respawn,
    a_timeout_kills_after_the_grace_and_not_before,
    without_grace_it_is_killed_at_once,

    a_background_child_does_not_hold_the_call,
    a_survivor_is_counted_however_young_it_is,
    a_survivor_that_writes_lives_on,
    a_survivor_that_ends_makes_it_exited,
    a_survivor_can_be_killed,
    descendants_are_ended_when_asked_for,
    descendants_that_ignore_sigterm_are_ended_when_asked_for,

    a_signal_can_be_caught,
    a_signal_reaches_other_sessions,
    sigkill_ends_all_and_is_reported,
    a_stopped_command_can_be_continued,
    a_signal_after_the_end_is_no_error,
}
