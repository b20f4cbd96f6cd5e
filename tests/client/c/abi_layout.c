/* Prints the size of every struct of eplb.h and eplb_plan.h and where its fields are, for
 * abi_layout.txt. */
#include <stddef.h>
#include <stdio.h>

#include "client/c/eplb_plan.h"

#define STRUCT(type) printf("%s %zu\n", #type, sizeof(type))
#define FIELD(type, field) \
  printf("  %s %zu %zu\n", #field, offsetof(type, field), sizeof(((type*)0)->field))

static void print_client_options(void) {
  STRUCT(eplb_client_options);
  FIELD(eplb_client_options, struct_size);
  FIELD(eplb_client_options, job);
  FIELD(eplb_client_options, run_id);
  FIELD(eplb_client_options, endpoint);
  FIELD(eplb_client_options, tls_ca);
  FIELD(eplb_client_options, tls_cert);
  FIELD(eplb_client_options, tls_key);
  FIELD(eplb_client_options, tls_server_name);
  FIELD(eplb_client_options, reduce);
  FIELD(eplb_client_options, transport);
  FIELD(eplb_client_options, bind_address);
  FIELD(eplb_client_options, initial_placement);
  FIELD(eplb_client_options, placements_path);
  FIELD(eplb_client_options, history_path);
  FIELD(eplb_client_options, first_step);
  FIELD(eplb_client_options, nccl_piece_bytes);
  FIELD(eplb_client_options, start_deadline_s);
  FIELD(eplb_client_options, vote_deadline_s);
  FIELD(eplb_client_options, transfer_deadline_s);
  FIELD(eplb_client_options, rank);
  FIELD(eplb_client_options, world_size);
  FIELD(eplb_client_options, num_layers);
  FIELD(eplb_client_options, num_experts);
  FIELD(eplb_client_options, num_slots);
  FIELD(eplb_client_options, num_gpus);
  FIELD(eplb_client_options, num_nodes);
  FIELD(eplb_client_options, num_groups);
  FIELD(eplb_client_options, vote_every);
  FIELD(eplb_client_options, report_every);
  FIELD(eplb_client_options, report_max_steps);
  FIELD(eplb_client_options, layers_per_chunk);
  FIELD(eplb_client_options, state_placement);
  FIELD(eplb_client_options, nccl_max_ctas);
  FIELD(eplb_client_options, nccl_channels_per_net_peer);
  FIELD(eplb_client_options, nccl_traffic_class);
  FIELD(eplb_client_options, nccl_warm_up_ranks);
  FIELD(eplb_client_options, pipeline_parallel_size);
  FIELD(eplb_client_options, expert_tensor_parallel);
  FIELD(eplb_client_options, reserved);
  FIELD(eplb_client_options, require_daemon);
  FIELD(eplb_client_options, take_over);
  FIELD(eplb_client_options, split);
  FIELD(eplb_client_options, ahead);
  FIELD(eplb_client_options, reserved2);
}

static void print_tensor_and_boundary(void) {
  STRUCT(eplb_tensor);
  FIELD(eplb_tensor, struct_size);
  FIELD(eplb_tensor, name);
  FIELD(eplb_tensor, base);
  FIELD(eplb_tensor, row_bytes);
  FIELD(eplb_tensor, row_stride);
  FIELD(eplb_tensor, num_rows);
  FIELD(eplb_tensor, layer);
  FIELD(eplb_tensor, role);
  FIELD(eplb_tensor, reserved);
  FIELD(eplb_tensor, rebuild);
  FIELD(eplb_tensor, user);
  STRUCT(eplb_replica_rows);
  FIELD(eplb_replica_rows, struct_size);
  FIELD(eplb_replica_rows, name);
  FIELD(eplb_replica_rows, base);
  FIELD(eplb_replica_rows, row_bytes);
  FIELD(eplb_replica_rows, row_stride);
  FIELD(eplb_replica_rows, num_rows);
  FIELD(eplb_replica_rows, layer);
  FIELD(eplb_replica_rows, type);
  FIELD(eplb_replica_rows, reserved);
  STRUCT(eplb_boundary);
  FIELD(eplb_boundary, struct_size);
  FIELD(eplb_boundary, voted);
  FIELD(eplb_boundary, switched);
  FIELD(eplb_boundary, version);
  FIELD(eplb_boundary, sent_bytes);
  FIELD(eplb_boundary, received_bytes);
  FIELD(eplb_boundary, pause_s);
  FIELD(eplb_boundary, decided_first_step);
  FIELD(eplb_boundary, decided_last_step);
  FIELD(eplb_boundary, reason);
}

static void print_placement_and_tables(void) {
  STRUCT(eplb_placement);
  FIELD(eplb_placement, struct_size);
  FIELD(eplb_placement, version);
  FIELD(eplb_placement, digest);
  FIELD(eplb_placement, num_layers);
  FIELD(eplb_placement, num_experts);
  FIELD(eplb_placement, num_slots);
  FIELD(eplb_placement, first_local_slot);
  FIELD(eplb_placement, num_local_slots);
  FIELD(eplb_placement, max_replicas);
  FIELD(eplb_placement, physical_to_logical_map);
  FIELD(eplb_placement, logical_to_physical_map);
  FIELD(eplb_placement, logical_replica_count);
  STRUCT(eplb_device_tables);
  FIELD(eplb_device_tables, struct_size);
  FIELD(eplb_device_tables, num_layers);
  FIELD(eplb_device_tables, num_experts);
  FIELD(eplb_device_tables, num_slots);
  FIELD(eplb_device_tables, reserved);
  FIELD(eplb_device_tables, physical_to_logical_map);
  FIELD(eplb_device_tables, logical_replica_count);
  FIELD(eplb_device_tables, replicas);
  FIELD(eplb_device_tables, first_replica);
  FIELD(eplb_device_tables, candidates);
  FIELD(eplb_device_tables, first_candidate);
  FIELD(eplb_device_tables, thresholds);
  STRUCT(eplb_choices);
  FIELD(eplb_choices, struct_size);
  FIELD(eplb_choices, expert_ids);
  FIELD(eplb_choices, is_padding);
  FIELD(eplb_choices, counters);
  FIELD(eplb_choices, num_tokens);
  FIELD(eplb_choices, top_k);
  FIELD(eplb_choices, num_experts);
  FIELD(eplb_choices, id_type);
  FIELD(eplb_choices, reserved);
}

static void print_stats(void) {
  STRUCT(eplb_stats);
  FIELD(eplb_stats, struct_size);
  FIELD(eplb_stats, connected);
  FIELD(eplb_stats, reserved);
  FIELD(eplb_stats, reconnects);
  FIELD(eplb_stats, reports_sent);
  FIELD(eplb_stats, refusals);
  FIELD(eplb_stats, dropped_steps);
  FIELD(eplb_stats, votes);
  FIELD(eplb_stats, commits);
  FIELD(eplb_stats, dropped_chunks);
  FIELD(eplb_stats, disconnected_s);
  FIELD(eplb_stats, session_waits_over_1ms);
}

static void print_plans(void) {
  STRUCT(eplb_rebalance_options);
  FIELD(eplb_rebalance_options, struct_size);
  FIELD(eplb_rebalance_options, num_layers);
  FIELD(eplb_rebalance_options, num_experts);
  FIELD(eplb_rebalance_options, num_replicas);
  FIELD(eplb_rebalance_options, num_groups);
  FIELD(eplb_rebalance_options, num_nodes);
  FIELD(eplb_rebalance_options, num_gpus);
  FIELD(eplb_rebalance_options, tie_break);
  FIELD(eplb_rebalance_options, reserved);
  STRUCT(eplb_plan_options);
  FIELD(eplb_plan_options, struct_size);
  FIELD(eplb_plan_options, policy);
  FIELD(eplb_plan_options, previous);
  FIELD(eplb_plan_options, previous_replicas);
  FIELD(eplb_plan_options, gpu_speeds);
  FIELD(eplb_plan_options, previous_max_replicas);
  FIELD(eplb_plan_options, num_layers);
  FIELD(eplb_plan_options, num_experts);
  FIELD(eplb_plan_options, num_slots);
  FIELD(eplb_plan_options, num_gpus);
  FIELD(eplb_plan_options, num_nodes);
  FIELD(eplb_plan_options, num_groups);
  FIELD(eplb_plan_options, tie_break);
  FIELD(eplb_plan_options, hierarchy);
  FIELD(eplb_plan_options, effort);
  FIELD(eplb_plan_options, allow_duplicates);
  FIELD(eplb_plan_options, max_moves_per_gpu);
  STRUCT(eplb_plan_sizes);
  FIELD(eplb_plan_sizes, struct_size);
  FIELD(eplb_plan_sizes, num_layers);
  FIELD(eplb_plan_sizes, num_experts);
  FIELD(eplb_plan_sizes, num_slots);
  FIELD(eplb_plan_sizes, max_replicas);
}

static void print_splits(void) {
  STRUCT(eplb_batch);
  FIELD(eplb_batch, struct_size);
  FIELD(eplb_batch, totals);
  FIELD(eplb_batch, by_gpu);
  FIELD(eplb_batch, before);
  FIELD(eplb_batch, mine);
  FIELD(eplb_batch, num_experts);
  FIELD(eplb_batch, num_gpus);
  STRUCT(eplb_split);
  FIELD(eplb_split, struct_size);
  FIELD(eplb_split, quotas);
  FIELD(eplb_split, own);
  FIELD(eplb_split, tight_gpus);
  FIELD(eplb_split, num_slots);
  FIELD(eplb_split, num_tight_gpus);
  FIELD(eplb_split, version);
  FIELD(eplb_split, peak);
  FIELD(eplb_split, mean);
  FIELD(eplb_split, balancedness);
  FIELD(eplb_split, equal_peak);
  STRUCT(eplb_split_options);
  FIELD(eplb_split_options, struct_size);
  FIELD(eplb_split_options, gpu_speeds);
  FIELD(eplb_split_options, slack);
  FIELD(eplb_split_options, num_gpus);
  FIELD(eplb_split_options, reserved);
}

int main(void) {
  printf("EPLB_ABI_VERSION %d\n", EPLB_ABI_VERSION);
  print_client_options();
  print_tensor_and_boundary();
  print_placement_and_tables();
  print_stats();
  print_plans();
  print_splits();
  return 0;
}
