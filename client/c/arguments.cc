// Reads arguments of the ABI: an all-gather's answers, tensors with their callbacks, and options.
#include "client/c/arguments.h"

#include <span>
#include <string>
#include <string_view>
#include <utility>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"

#include "base/errors.h"
#include "base/status_macros.h"
#include "client/c/call.h"
#include "client/c/structs.h"

// NOLINTNEXTLINE(readability-identifier-naming): the struct of the ABI
struct eplb_answers {
  std::vector<std::string> blobs;
};

namespace eplb::c {
namespace {

constexpr size_t kMaxAnswers = size_t{1} << 20;  // ranks

absl::StatusOr<Role> ReadRole(int32_t role) {
  switch (role) {
    case EPLB_WEIGHT:
      return Role::kWeight;
    case EPLB_STATE:
      return Role::kState;
    case EPLB_DERIVED:
      return Role::kDerived;
    default:
      return InvalidInput("role ", role, ", expected EPLB_WEIGHT (0), EPLB_STATE (1) or ",
                          "EPLB_DERIVED (2)");
  }
}

absl::StatusOr<ExpertTensorView> ReadTensor(const eplb_tensor& tensor) {
  ExpertTensorView view;
  if (tensor.name == nullptr) return InvalidInput("name is NULL");
  view.name = tensor.name;
  EPLB_ASSIGN_OR_RETURN(view.role, ReadRole(tensor.role));
  if (tensor.reserved != 0) return InvalidInput("reserved ", tensor.reserved, ", expected 0");
  view.layer = tensor.layer;
  view.base = tensor.base;
  view.num_rows = tensor.num_rows;
  view.row_bytes = tensor.row_bytes;
  view.row_stride = tensor.row_stride;
  if (tensor.rebuild != nullptr) {
    view.rebuild = [rebuild = tensor.rebuild, user = tensor.user](
                       int32_t layer, std::span<const int32_t> local_slots) {
      return CallBack([&] { return rebuild(user, layer, local_slots.data(), local_slots.size()); });
    };
  }
  return view;
}

void Take(const char* given, std::string& option) {
  if (given != nullptr) option = given;
}

ClientOptions Strings(const eplb_client_options& given) {
  ClientOptions options;
  Take(given.job, options.job);
  Take(given.run_id, options.run_id);
  Take(given.endpoint, options.endpoint);
  Take(given.tls_ca, options.tls.ca);
  Take(given.tls_cert, options.tls.cert);
  Take(given.tls_key, options.tls.key);
  Take(given.tls_server_name, options.tls.server_name);
  Take(given.reduce, options.reduce);
  Take(given.split, options.split);
  Take(given.transport, options.transport);
  Take(given.bind_address, options.bind_address);
  Take(given.initial_placement, options.initial_placement);
  Take(given.placements_path, options.placements_path);
  Take(given.history_path, options.history_path);
  return options;
}

absl::Status CheckNumbers(const eplb_client_options& given) {
  for (const auto& [name, number] :
       {std::pair{"reserved", given.reserved}, {"reserved2", given.reserved2}}) {
    if (number == 0) continue;
    return InvalidInput("options.", name, ": ", number, ", expected 0");
  }
  for (const auto& [name, number] : {std::pair{"require_daemon", given.require_daemon},
                                     {"take_over", given.take_over},
                                     {"ahead", given.ahead}}) {
    if (number == 0 || number == 1) continue;
    return InvalidInput(name, ": ", number, ", expected 0 or 1");
  }
  if (given.state_placement != EPLB_STATE_WITH_PRIMARY &&
      given.state_placement != EPLB_STATE_IN_EVERY_REPLICA) {
    return InvalidInput("state_placement: ", given.state_placement,
                        ", expected EPLB_STATE_WITH_PRIMARY (", EPLB_STATE_WITH_PRIMARY,
                        ") or EPLB_STATE_IN_EVERY_REPLICA (", EPLB_STATE_IN_EVERY_REPLICA, ")");
  }
  return absl::OkStatus();
}

// Calls `visit` with each number that has one type and one meaning in both structs.
template <class Visit>
void EachNumber(const Visit& visit) {
  visit(&eplb_client_options::first_step, &ClientOptions::first_step);
  visit(&eplb_client_options::rank, &ClientOptions::rank);
  visit(&eplb_client_options::world_size, &ClientOptions::world_size);
  visit(&eplb_client_options::num_layers, &ClientOptions::num_layers);
  visit(&eplb_client_options::num_experts, &ClientOptions::num_experts);
  visit(&eplb_client_options::num_slots, &ClientOptions::num_slots);
  visit(&eplb_client_options::num_gpus, &ClientOptions::num_gpus);
  visit(&eplb_client_options::num_nodes, &ClientOptions::num_nodes);
  visit(&eplb_client_options::num_groups, &ClientOptions::num_groups);
  visit(&eplb_client_options::vote_every, &ClientOptions::vote_every);
  visit(&eplb_client_options::report_every, &ClientOptions::report_every);
  visit(&eplb_client_options::report_max_steps, &ClientOptions::report_max_steps);
  visit(&eplb_client_options::layers_per_chunk, &ClientOptions::layers_per_chunk);
  visit(&eplb_client_options::pipeline_parallel_size, &ClientOptions::pipeline_parallel_size);
  visit(&eplb_client_options::expert_tensor_parallel, &ClientOptions::expert_tensor_parallel);
}

}  // namespace

AllGather MakeAllGather(eplb_all_gather all_gather, void* user, int32_t rank) {
  return
      [all_gather, user, rank](std::string_view bytes) -> absl::StatusOr<std::vector<std::string>> {
        eplb_answers answers;
        const absl::Status status =
            CallBack([&] { return all_gather(user, bytes.data(), bytes.size(), &answers); });
        if (!status.ok()) {
          return absl::Status(status.code(), absl::StrCat("all_gather: ", status.message()));
        }
        const auto own = static_cast<size_t>(rank);
        if (own < answers.blobs.size() && answers.blobs[own] != bytes) {
          return FailedPrecondition(
              "all_gather: the answer of rank ", rank, " is not what this rank ", rank,
              " gave: another process speaks for it, or the answers are not in the order of ranks");
        }
        return std::move(answers.blobs);
      };
}

ExpertProbe MakeProbe(eplb_probe probe, void* user) {
  return [probe, user](int32_t layer, int32_t local_slot) -> absl::StatusOr<uint64_t> {
    uint64_t digest = 0;
    EPLB_RETURN_IF_ERROR(CallBack([&] { return probe(user, layer, local_slot, &digest); }));
    return digest;
  };
}

absl::StatusOr<std::vector<ExpertTensorView>> ReadTensors(const eplb_tensor* tensors,
                                                          size_t num_tensors) {
  return ReadArray<ExpertTensorView>(
      "tensors", tensors, num_tensors,
      [](const std::string& place, const eplb_tensor& tensor) -> absl::StatusOr<ExpertTensorView> {
        absl::StatusOr<ExpertTensorView> view = ReadTensor(tensor);
        if (view.ok()) return view;
        const std::string name =
            tensor.name == nullptr ? "" : absl::StrCat(" \"", tensor.name, "\"");
        return absl::Status(view.status().code(),
                            absl::StrCat(place, name, ": ", view.status().message()));
      });
}

eplb_client_options DefaultClientOptions() {
  const ClientOptions defaults;
  eplb_client_options options = {};
  options.struct_size = sizeof(options);
  EachNumber([&](auto given, auto option) { options.*given = defaults.*option; });
  options.nccl_piece_bytes = defaults.nccl.piece_bytes;
  options.start_deadline_s = absl::ToDoubleSeconds(defaults.start_deadline);
  options.vote_deadline_s = absl::ToDoubleSeconds(defaults.vote_deadline);
  options.transfer_deadline_s = absl::ToDoubleSeconds(defaults.transfer_deadline);
  options.state_placement = defaults.state_placement == StatePlacement::kWithPrimary
                                ? EPLB_STATE_WITH_PRIMARY
                                : EPLB_STATE_IN_EVERY_REPLICA;
  options.nccl_max_ctas = defaults.nccl.max_ctas;
  options.nccl_channels_per_net_peer = defaults.nccl.channels_per_net_peer;
  options.nccl_traffic_class = defaults.nccl.traffic_class;
  options.nccl_warm_up_ranks = defaults.nccl.warm_up_ranks;
  return options;
}

absl::StatusOr<ClientOptions> ReadClientOptions(const eplb_client_options* pointer) {
  EPLB_ASSIGN_OR_RETURN(const eplb_client_options given,
                        ReadStruct("options", pointer, DefaultClientOptions()));
  EPLB_RETURN_IF_ERROR(CheckNumbers(given));
  ClientOptions options = Strings(given);
  EachNumber([&](auto number, auto option) { options.*option = given.*number; });
  options.start_deadline = absl::Seconds(given.start_deadline_s);
  options.vote_deadline = absl::Seconds(given.vote_deadline_s);
  options.transfer_deadline = absl::Seconds(given.transfer_deadline_s);
  options.state_placement = given.state_placement == EPLB_STATE_WITH_PRIMARY
                                ? StatePlacement::kWithPrimary
                                : StatePlacement::kEveryReplica;
  options.require_daemon = given.require_daemon == 1;
  options.take_over = given.take_over == 1;
  options.ahead = given.ahead == 1;
  options.nccl = {.max_ctas = given.nccl_max_ctas,
                  .channels_per_net_peer = given.nccl_channels_per_net_peer,
                  .traffic_class = given.nccl_traffic_class,
                  .piece_bytes = given.nccl_piece_bytes,
                  .warm_up_ranks = given.nccl_warm_up_ranks};
  return options;
}

}  // namespace eplb::c

extern "C" int32_t eplb_answers_add(eplb_answers* answers, const void* bytes,
                                    size_t num_bytes) noexcept {
  return eplb::c::CatchAll([&] {
    if (answers == nullptr || (bytes == nullptr && num_bytes != 0)) {
      return InvalidInput("eplb_answers_add: an argument is NULL");
    }
    if (answers->blobs.size() >= eplb::c::kMaxAnswers) {
      return InvalidInput("eplb_answers_add: more than ", eplb::c::kMaxAnswers, " answers");
    }
    answers->blobs.emplace_back(static_cast<const char*>(bytes), num_bytes);
    return absl::OkStatus();
  });
}
