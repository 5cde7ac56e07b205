"""Each entry of the list of field bugs, which lies beside the checkout, is shown by tests: here are their names."""

import ast
import re
from functools import cache
from pathlib import Path

import pytest

from tests.support.checkout import ROOT

SHOWN_BY = {
    "A01": (
        "unit/test_kl::test_padding_is_in_no_mean_of_an_estimator",
        "unit/test_kl::test_k3_is_exact_up_to_40_nats_and_still_pulls_beyond",
    ),
    "A02": (
        "unit/test_masking::test_a_response_ends_with_its_first_eos",
        "unit/test_masking::test_without_an_eos_all_tokens_are_real",
    ),
    "A03": ("unit/test_advantages::test_the_score_lands_on_the_last_real_token",),
    "A06": ("unit/test_advantages::test_values_on_padding_do_not_leak",),
    "A07": ("unit/test_advantages::test_a_cut_response_is_not_the_end",),
    "A09": ("unit/test_masking::test_placeholders_on_padding_are_in_no_sum",),
    "A10": (
        "unit/test_logprobs::test_entropy_of_a_distribution_with_a_banned_token",
        "unit/test_logprobs::test_entropy_is_that_of_the_unfiltered_distribution",
    ),
    "A11": ("unit/test_logprobs::test_logits_are_divided_by_the_sampling_temperature",),
    "A13": ("numerics/test_ppo_training::test_before_the_first_update_every_ratio_is_one_in_spite_of_dropout",),
    "A14": ("unit/test_masking::test_whitening_leaves_padding_out",),
    "A16": (
        "unit/test_kl_control::test_settings_that_cannot_work_are_refused",
        "unit/test_kl_control::test_updates_follow_the_relative_error_clipped_to_a_fifth",
    ),
    "A18": ("unit/test_kl_control::test_the_kl_of_whole_responses_raises_what_the_token_mean_would_lower",),
    "A20": ("unit/test_losses::test_value_clipping_takes_the_larger_error_of_each_token",),
    "A22": (
        "unit/test_masking::test_scaling_keeps_the_mean",
        "unit/test_masking::test_scaling_equal_entries_changes_nothing",
    ),
    "A25": ("unit/test_losses::test_the_total_adds_the_value_loss_and_subtracts_the_entropy",),
    "B01": ("unit/test_dpo_dataset::test_no_token_spans_the_border_even_where_the_texts_would_merge",),
    "B02": ("unit/test_dpo_dataset::test_a_prompt_loses_its_beginning_and_only_as_much_as_it_must",),
    "B03": (
        "unit/test_dpo_dataset::test_lengths_without_room_for_a_response_are_refused",
        "unit/test_dpo_dataset::test_rows_that_teach_nothing_are_counted",
    ),
    "B05": ("unit/test_dpo_dataset::test_what_the_template_writes_comes_once_and_a_tokenizer_without_bos_adds_none",),
    "B06": ("unit/test_losses::test_dpo_starts_at_ln_2_with_a_gradient",),
    "B09": (
        "unit/test_losses::test_dpo_with_and_without_label_smoothing",
        "unit/test_losses::test_more_than_half_of_the_labels_cannot_be_wrong",
    ),
    "B11": (
        "unit/test_losses::test_the_odds_ratio_keeps_its_digits_near_probability_one",
        "unit/test_losses::test_the_odds_ratio_stays_finite",
    ),
    "B12": ("unit/test_losses::test_the_supervised_loss_of_a_response_counts_neither_prompt_nor_padding",),
    "B13": ("unit/test_dpo_dataset::test_a_dataset_without_a_trainable_row_is_an_error",),
    "B15": ("unit/test_dpo::test_a_uniform_model_gives_each_response_token_the_log_of_the_vocabulary",),
    "B16": ("unit/test_columns::test_a_row_or_a_column_of_another_form_is_named",),
    "C01": (
        "unit/test_masking::test_pooling_on_either_side_of_the_padding",
        "unit/test_masking::test_pooling_an_empty_row_is_an_error",
    ),
    "C03": ("unit/test_reward_trainer::test_padding_is_known_to_tokenizer_and_model_before_anything_is_trained",),
    "C04": ("numerics/test_ragged_rows::test_scores_of_reward_models",),
    "C05": (
        "unit/test_reward_files::test_the_scores_come_back",
        "unit/test_reward_files::test_a_folder_without_its_head_or_config_is_refused",
    ),
    "C06": ("unit/test_reward_files::test_starting_with_another_number_of_outputs_names_both_shapes",),
    "C09": ("unit/test_losses::test_bradley_terry_neither_overflows_nor_counts_ties_as_wins",),
    "C10": ("unit/test_reward_model_scoring::test_predictions_have_no_dropout_and_leave_every_mode_as_it_was",),
    "D01": ("unit/test_advantages::test_a_group_of_equal_scores_gets_exactly_zero",),
    "D04": ("unit/test_grpo_trainer::test_a_group_size_that_does_not_fit_lists_those_that_do",),
    "D05": (
        "unit/test_losses::test_named_reductions_of_the_same_token_losses",
        "unit/test_losses::test_two_micro_batches_reduce_to_the_same_numbers",
    ),
    "D06": ("unit/test_losses::test_a_masked_response_leaves_numerator_and_denominator",),
    "D07": (
        "unit/test_advantages::test_a_missing_score_is_in_no_mean_and_gets_zero",
        "unit/test_advantages::test_an_infinite_score_is_named",
    ),
    "D10": ("unit/test_advantages::test_the_sign_is_that_of_the_score_less_the_mean",),
    "D11": (
        "unit/test_grpo_update::test_the_baseline_of_leave_one_out_is_the_mean_of_the_others",
        "unit/test_grpo_update::test_the_kl_enters_the_score_before_the_baseline_of_leave_one_out_and_the_loss_of_group_relative",
    ),
    "E01": (
        "unit/test_stop_sequences::test_text_ends_before_the_first_stop_string",
        "unit/test_stop_sequences::test_cuts_of_the_text_into_pieces_do_not_matter",
    ),
    "E03": ("unit/test_formatting::test_special_tokens_of_the_response_stay_in_its_text",),
    "E04": ("unit/test_formatting::test_the_response_is_cut_out_by_tokens_whatever_the_prompt_holds",),
    "E05": ("unit/test_filtering::test_kept_tokens_are_renormalised",),
    "E06": (
        "unit/test_filtering::test_a_temperature_at_or_near_zero_is_greedy",
        "unit/test_filtering::test_settings_out_of_range_are_refused",
    ),
    "E08": (
        "unit/test_math_answers::test_right",
        "unit/test_math_answers::test_wrong",
        "unit/test_math_answers::test_long_texts_take_no_longer_than_their_length",
    ),
    "E09": (
        "unit/test_math_answers::test_right",
        "unit/test_math_answers::test_wrong",
        "unit/test_math_answers::test_no_text_raises",
    ),
    "E10": (
        "unit/test_code_environment::test_hostile_code_ends_within_its_limits",
        "unit/test_code_environment::test_code_runs_from_any_thread_and_side_by_side",
    ),
    "E12": (
        "unit/test_code_environment::test_the_environment_reads_code_and_never_runs_it",
        "unit/test_code_environment::test_the_child_sees_nothing_of_its_parent",
    ),
    "F01": (
        "numerics/test_accumulation::test_losses_over_the_counts_of_the_step_make_micro_batches_of_unequal_length_one_batch",
    ),
    "F02": ("numerics/test_accumulation::test_a_short_last_window_steps_along_the_mean_of_what_it_has",),
    "F04": ("numerics/test_ppo_resume::test_a_resumed_run_equals_the_uninterrupted_one",),
    "F05": ("unit/test_kl_control::test_a_resumed_controller_goes_on_where_it_was",),
    "F06": ("numerics/test_ppo_resume::test_a_checkpoint_without_critic_weights_or_moments_is_refused",),
    "F08": (
        "unit/test_checkpoint::test_sigkill_during_a_save_leaves_the_earlier_checkpoint",
        "unit/test_checkpoint::test_damage_everywhere_is_an_error_and_not_a_fresh_start",
    ),
    "F10": (
        "unit/test_checkpoint::test_rotation_spares_the_best_and_the_last",
        "unit/test_checkpoint::test_steps_sort_as_integers",
    ),
    "F11": ("unit/test_forward_backward::test_a_non_finite_number_costs_the_whole_window_and_nothing_else",),
    "F12": ("unit/test_masking::test_left_padding_does_not_move_positions",),
    "F13": ("unit/test_reward_files::test_tied_weights_stay_tied",),
    "F16": (
        "unit/test_forward_backward::test_a_failed_micro_batch_blocks_its_step_and_no_later_one",
        "unit/test_forward_backward::test_shutdown_logs_errors_that_nobody_asked_for",
    ),
    "F17": ("numerics/test_accumulation::test_a_pipeline_trains_bit_for_bit_like_the_plain_loop_twenty_times",),
    "F18": ("unit/test_processes::test_mixed_precision_of_the_launch_is_refused",),
    "G01": (
        "integration/test_validate::test_a_byte_order_mark_and_windows_line_ends_change_nothing",
        "integration/test_validate::test_latin_1_fails_the_stage_with_file_line_and_encoding",
    ),
    "G02": (
        "unit/test_formatting::test_a_system_message_that_the_template_does_not_show_is_put_in_front_of_the_question_with_one_warning",
    ),
    "G04": ("unit/test_schemas::test_rows_of_one_prompt_share_a_split_whatever_their_order",),
    "G05": (
        "integration/test_validate::test_the_report_is_capped_but_the_count_is_not",
        "unit/test_schemas::test_all_faults_of_a_row_are_found_at_once",
    ),
    "G07": (
        "unit/test_reading::test_a_row_beyond_the_limit_is_a_fault_with_a_short_copy",
        "unit/test_reading::test_pieces_end_with_the_row_that_reaches_a_limit_and_come_twice_alike",
    ),
    "H01": ("integration/test_tracking_store::test_two_failed_attempts_and_a_good_one_are_one_finished_run",),
    "H02": (
        "integration/test_tracking_store::test_of_nan_infinity_and_one_the_one_is_stored_and_the_others_are_named",
        "unit/test_gate::test_what_was_not_measured_does_not_pass",
    ),
    "H03": (
        "integration/test_tracking_store::test_a_run_that_goes_on_with_another_learning_rate_keeps_the_old_one_and_says_the_new",
    ),
    "H05": ("integration/test_tracking_store::test_what_a_worker_thread_logs_stands_in_the_one_run",),
    "H07": (
        "integration/test_tracking_store::test_after_a_crash_at_7_with_a_checkpoint_of_5_each_step_up_to_8_is_stored_once",
    ),
    "H09": (
        "integration/test_promotion::test_only_the_better_candidate_of_field_bug_h09_becomes_champion",
        "integration/test_promotion::test_a_click_between_look_and_move_wins",
        "integration/test_promotion::test_rollback_goes_back_one_champion_at_a_time",
    ),
    "H10": (
        "e2e/test_kill::test_kill_9_of_the_command_leaves_nothing_that_the_next_one_does_not_mend",
        "e2e/test_kill::test_a_killed_stage_and_a_full_disk_are_tried_again",
        "integration/test_llm_runs::test_a_killed_run_that_is_taken_up_is_one_run_with_each_step_once",
    ),
    "H11": (
        "e2e/test_kill::test_a_second_run_waits_and_sigterm_frees_the_way",
        "unit/test_versioning::test_a_lock_is_waited_for_and_freed_by_a_kill",
        "unit/test_locks::test_a_waiting_process_holds_nothing_meanwhile",
    ),
    "H14": (
        "integration/test_dvc_faults::test_another_dvc_command_is_waited_for",
        "integration/test_dvc_faults::test_one_that_lasts_ends_in_a_line_that_may_be_tried_again_and_one_that_was_killed_holds_nothing",
    ),
    "H15": (
        "integration/test_dvc_faults::test_what_a_stage_makes_is_not_added_and_the_message_says_by_which",
        "integration/test_dvc_faults::test_what_a_failed_stage_left_is_neither_noted_nor_kept",
    ),
    "H17": (
        "unit/test_pipeline_state::test_a_name_cannot_leave_the_folder",
        "unit/test_checkpoint::test_a_group_name_cannot_leave_the_folder",
        "unit/test_checkpoint::test_a_manifest_cannot_point_outside_the_folder",
        "unit/test_data_sets::test_the_name_leads_nowhere_else_and_not_to_what_a_stage_makes",
        "unit/test_versioning::test_a_version_that_climbs_out_of_its_folder_is_refused",
        "unit/test_reward_files::test_a_tokenizer_file_never_leaves_its_folder",
    ),
    "H18": (
        "unit/test_checkpoint::test_a_pickle_is_not_read",
        "unit/test_checkpoint::test_the_library_unpickles_nothing",
        "unit/test_reward_files::test_pickled_weights_of_a_folder_are_not_read",
        "unit/test_reward_files::test_a_pickled_file_is_refused_with_a_way_to_convert_it",
    ),
}
"""Number of an entry to tests, each as a file below tests/ and a name in it."""


@cache
def functions_of(file: str) -> frozenset[str]:
    """Names of the functions of a file below tests/."""
    tree = ast.parse((ROOT / "tests" / f"{file}.py").read_text(encoding="utf-8"))
    return frozenset(node.name for node in ast.walk(tree) if isinstance(node, ast.FunctionDef))


@pytest.mark.parametrize("entry", SHOWN_BY)
def test_what_shows_an_entry_is_a_test(entry: str):
    for test in SHOWN_BY[entry]:
        file, _, name = test.partition("::")
        assert name.startswith("test_")
        assert name in functions_of(file), test


def test_every_entry_of_the_list_is_shown(shared: Path):
    listed = re.findall(r"^### BUG-(\w+) ", (shared / "field-bugs.md").read_text(encoding="utf-8"), flags=re.MULTILINE)
    assert len(listed) == 79
    assert sorted(listed) == sorted(SHOWN_BY)
