#include "client/c/client_options.h"

#include <cstring>
#include <string>
#include <utility>

#include "absl/strings/str_cat.h"

#include "client/c/report.h"
#include "client/c/structs.h"

namespace eplb::c {
namespace {

void Take(const char* given, std::string& option) {
  if (given != nullptr) option = given;
}

ClientOptions Strings(const eplb_client_options& given) {
  ClientOptions options;
  Take(given.job, options.job);
  Take(given.incarnation, options.incarnation);
  Take(given.endpoint, options.endpoint);
  Take(given.tls_ca, options.tls.ca);
  Take(given.tls_cert, options.tls.cert);
  Take(given.tls_key, options.tls.key);
  Take(given.tls_server_name, options.tls.server_name);
  Take(given.reduce, options.reduce);
  Take(given.transport, options.transport);
  Take(given.bind_address, options.bind_address);
  Take(given.initial_placement, options.initial_placement);
  Take(given.placements_path, options.placements_path);
  Take(given.history_path, options.history_path);
  return options;
}

// 0 is what a program says that was made before the field was there.
int32_t OneForZero(int32_t number) { return number == 0 ? 1 : number; }

absl::Status CheckNumbers(const eplb_client_options& given) {
  if (given.reserved != 0) {
    return absl::InvalidArgumentError(
        absl::StrCat("options.reserved: ", given.reserved, ", expected 0"));
  }
  for (const auto& [name, number] :
       {std::pair{"require_daemon", given.require_daemon}, {"take_over", given.take_over}}) {
    if (number == 0 || number == 1) continue;
    return absl::InvalidArgumentError(absl::StrCat(name, ": ", number, ", expected 0 or 1"));
  }
  if (given.state_placement != EPLB_STATE_WITH_PRIMARY &&
      given.state_placement != EPLB_STATE_IN_EVERY_REPLICA) {
    return absl::InvalidArgumentError(
        absl::StrCat("state_placement: ", given.state_placement,
                     ", expected EPLB_STATE_WITH_PRIMARY (", EPLB_STATE_WITH_PRIMARY,
                     ") or EPLB_STATE_IN_EVERY_REPLICA (", EPLB_STATE_IN_EVERY_REPLICA, ")"));
  }
  return absl::OkStatus();
}

}  // namespace

eplb_client_options DefaultClientOptions() {
  const ClientOptions defaults;
  eplb_client_options options = {};
  options.struct_size = sizeof(options);
  options.first_step = defaults.first_step;
  options.nccl_piece_bytes = defaults.nccl.piece_bytes;
  options.start_deadline_s = absl::ToDoubleSeconds(defaults.start_deadline);
  options.vote_deadline_s = absl::ToDoubleSeconds(defaults.vote_deadline);
  options.transfer_deadline_s = absl::ToDoubleSeconds(defaults.transfer_deadline);
  options.rank = defaults.rank;
  options.world_size = defaults.world_size;
  options.num_layers = defaults.num_layers;
  options.num_experts = defaults.num_experts;
  options.num_slots = defaults.num_slots;
  options.num_gpus = defaults.num_gpus;
  options.num_nodes = defaults.num_nodes;
  options.num_groups = defaults.num_groups;
  options.vote_every = defaults.vote_every;
  options.report_every = defaults.report_every;
  options.report_max_steps = defaults.report_max_steps;
  options.layers_per_chunk = defaults.layers_per_chunk;
  options.state_placement = defaults.state_placement == StatePlacement::kWithPrimary
                                ? EPLB_STATE_WITH_PRIMARY
                                : EPLB_STATE_IN_EVERY_REPLICA;
  options.nccl_max_ctas = defaults.nccl.max_ctas;
  options.nccl_channels_per_net_peer = defaults.nccl.channels_per_net_peer;
  options.nccl_traffic_class = defaults.nccl.traffic_class;
  options.nccl_warm_up_ranks = defaults.nccl.warm_up_ranks;
  options.num_pipeline_ranks = defaults.num_pipeline_ranks;
  options.expert_tensor_parallel = defaults.expert_tensor_parallel;
  return options;
}

absl::StatusOr<ClientOptions> ReadClientOptions(const eplb_client_options* pointer) {
  EPLB_ASSIGN_OR_RETURN(const eplb_client_options given,
                        ReadStruct("options", pointer, DefaultClientOptions()));
  EPLB_RETURN_IF_ERROR(CheckNumbers(given));
  ClientOptions options = Strings(given);
  options.first_step = given.first_step;
  options.start_deadline = absl::Seconds(given.start_deadline_s);
  options.vote_deadline = absl::Seconds(given.vote_deadline_s);
  options.transfer_deadline = absl::Seconds(given.transfer_deadline_s);
  options.rank = given.rank;
  options.world_size = given.world_size;
  options.num_layers = given.num_layers;
  options.num_experts = given.num_experts;
  options.num_slots = given.num_slots;
  options.num_gpus = given.num_gpus;
  options.num_nodes = given.num_nodes;
  options.num_groups = given.num_groups;
  options.num_pipeline_ranks = OneForZero(given.num_pipeline_ranks);
  options.expert_tensor_parallel = OneForZero(given.expert_tensor_parallel);
  options.vote_every = given.vote_every;
  options.report_every = given.report_every;
  options.report_max_steps = given.report_max_steps;
  options.layers_per_chunk = given.layers_per_chunk;
  options.state_placement = given.state_placement == EPLB_STATE_WITH_PRIMARY
                                ? StatePlacement::kWithPrimary
                                : StatePlacement::kEveryReplica;
  options.require_daemon = given.require_daemon == 1;
  options.take_over = given.take_over == 1;
  options.nccl = {.max_ctas = given.nccl_max_ctas,
                  .channels_per_net_peer = given.nccl_channels_per_net_peer,
                  .traffic_class = given.nccl_traffic_class,
                  .piece_bytes = given.nccl_piece_bytes,
                  .warm_up_ranks = given.nccl_warm_up_ranks};
  return options;
}

}  // namespace eplb::c

extern "C" int32_t eplb_client_options_init(eplb_client_options* options,
                                            size_t struct_size) noexcept {
  return eplb::c::Guarded([&]() -> absl::Status {
    if (options == nullptr) return absl::InvalidArgumentError("options is NULL");
    EPLB_RETURN_IF_ERROR(eplb::c::CheckStructSize<eplb_client_options>("options", struct_size));
    options->struct_size = struct_size;
    eplb::c::FillStruct(eplb::c::DefaultClientOptions(), options);
    return absl::OkStatus();
  });
}
