// The calls of the C ABI that make, use and destroy a client.
#include "client/client.h"

#include <cstring>
#include <memory>
#include <span>
#include <string>
#include <utility>

#include "absl/status/statusor.h"
#include "absl/strings/str_cat.h"

#include "base/foreign_text.h"
#include "client/c/client_handle.h"
#include "client/c/eplb.h"

using eplb::c::CallOnTrainingThread;
using eplb::c::CheckFillable;
using eplb::c::FillStruct;
using eplb::c::Needs;
using eplb::c::ReadOnlyCall;

namespace eplb::c {

namespace {

absl::Status RefuseSecondConnect(const eplb_client& handle) {
  if (handle.closed) return absl::FailedPreconditionError("connect was called after close");
  if (handle.client != nullptr) return absl::FailedPreconditionError("connect was called twice");
  return absl::OkStatus();
}

absl::Status Connect(eplb_client& handle, ClientOptions options, AllGather all_gather) {
  EPLB_ASSIGN_OR_RETURN(std::unique_ptr<Client> client,
                        Client::Connect(std::move(options), std::move(all_gather)));
  handle.client = client.release();
  return absl::OkStatus();
}

// So that nobody reads what a call that fails, or one in a forked child, left unwritten.
template <class Struct>
void Clear(Struct* result, const Struct& empty = {}) {
  if (CheckFillable("result", result).ok()) FillStruct(empty, result);
}

eplb_boundary BoundaryOf(const BoundaryResult& boundary) {
  eplb_boundary result = {};
  result.voted = boundary.voted ? 1 : 0;
  result.switched = boundary.switched ? 1 : 0;
  result.version = boundary.version;
  result.sent_bytes = boundary.sent_bytes;
  result.received_bytes = boundary.received_bytes;
  result.pause_s = boundary.pause_seconds;
  result.decided_first_step = boundary.decided_first_step;
  result.decided_last_step = boundary.decided_last_step;
  result.reason = boundary.reason.c_str();
  return result;
}

eplb_placement PlacementOf(const PlacementView& view) {
  eplb_placement result = {};
  result.version = view.version;
  view.digest.copy(result.digest, sizeof(result.digest) - 1);
  result.num_layers = view.num_layers;
  result.num_experts = view.num_experts;
  result.num_slots = view.num_slots;
  result.first_local_slot = view.first_local_slot;
  result.num_local_slots = view.num_local_slots;
  result.max_replicas = view.max_replicas;
  result.physical_to_logical_map = view.physical_to_logical_map.data();
  result.logical_to_physical_map = view.logical_to_physical_map.data();
  result.logical_replica_count = view.logical_replica_count.data();
  return result;
}

eplb_device_tables TablesOf(const DeviceTables& tables) {
  eplb_device_tables result = {};
  result.num_layers = tables.num_layers;
  result.num_experts = tables.num_experts;
  result.num_slots = tables.num_slots;
  result.physical_to_logical_map = tables.physical_to_logical_map;
  result.logical_replica_count = tables.logical_replica_count;
  result.replicas = tables.replicas;
  result.first_replica = tables.first_replica;
  result.candidates = tables.candidates;
  result.first_candidate = tables.first_candidate;
  result.thresholds = tables.thresholds;
  return result;
}

eplb_stats StatsOf(const ClientStats& stats) {
  eplb_stats result = {};
  result.connected = stats.connected ? 1 : 0;
  result.reconnects = stats.reconnects;
  result.reports_sent = stats.reports_sent;
  result.refusals = stats.refusals;
  result.dropped_steps = stats.dropped_steps;
  result.votes = stats.votes;
  result.commits = stats.commits;
  result.dropped_chunks = stats.dropped_chunks;
  result.disconnected_s = stats.disconnected_seconds;
  result.session_waits_over_1ms = stats.session_waits_over_1ms;
  return result;
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
    return absl::InvalidArgumentError(absl::StrCat("options.", name, ": ", number, ", expected 0"));
  }
  for (const auto& [name, number] : {std::pair{"require_daemon", given.require_daemon},
                                     {"take_over", given.take_over},
                                     {"ahead", given.ahead}}) {
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
  options.pipeline_parallel_size = defaults.pipeline_parallel_size;
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
  options.pipeline_parallel_size = given.pipeline_parallel_size;
  options.expert_tensor_parallel = given.expert_tensor_parallel;
  options.vote_every = given.vote_every;
  options.report_every = given.report_every;
  options.report_max_steps = given.report_max_steps;
  options.layers_per_chunk = given.layers_per_chunk;
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

extern "C" {

int32_t eplb_client_create(eplb_client** client) noexcept {
  return eplb::c::CatchAll([&] {
    if (client == nullptr) return absl::InvalidArgumentError("create: client is NULL");
    *client = std::make_unique<eplb_client>().release();
    return absl::OkStatus();
  });
}

void eplb_client_destroy(eplb_client* client) noexcept { delete client; }

const char* eplb_client_message(const eplb_client* client) noexcept {
  return client == nullptr ? eplb_last_message() : client->message.c_str();
}

int32_t eplb_client_connect(eplb_client* client, const eplb_client_options* options,
                            eplb_all_gather all_gather, void* user) noexcept {
  return CallOnTrainingThread(client, "connect", Needs::kNothing, [&]() -> absl::Status {
    EPLB_RETURN_IF_ERROR(eplb::c::RefuseSecondConnect(*client));
    EPLB_ASSIGN_OR_RETURN(eplb::ClientOptions known, eplb::c::ReadClientOptions(options));
    if (all_gather == nullptr) return absl::InvalidArgumentError("all_gather is NULL");
    const int32_t rank = known.rank;
    return eplb::c::Connect(*client, std::move(known),
                            eplb::c::MakeAllGather(all_gather, user, rank));
  });
}

int32_t eplb_client_connect_through_daemon(eplb_client* client,
                                           const eplb_client_options* options) noexcept {
  return CallOnTrainingThread(
      client, "connect_through_daemon", Needs::kNothing, [&]() -> absl::Status {
        EPLB_RETURN_IF_ERROR(eplb::c::RefuseSecondConnect(*client));
        EPLB_ASSIGN_OR_RETURN(eplb::ClientOptions known, eplb::c::ReadClientOptions(options));
        eplb::AllGather all_gather = eplb::MakeDaemonAllGather(known);
        return eplb::c::Connect(*client, std::move(known), std::move(all_gather));
      });
}

int32_t eplb_client_register_experts(eplb_client* client, const eplb_tensor* tensors,
                                     size_t num_tensors) noexcept {
  return CallOnTrainingThread(client, "register_experts", Needs::kOpen, [&]() -> absl::Status {
    EPLB_ASSIGN_OR_RETURN(const std::vector<eplb::ExpertTensorView> views,
                          eplb::c::ReadTensors(tensors, num_tensors));
    return client->client.load()->RegisterExperts(views);
  });
}

int32_t eplb_client_check_experts(eplb_client* client, eplb_probe probe, void* user,
                                  void* stream) noexcept {
  return CallOnTrainingThread(client, "check_experts", Needs::kOpen, [&]() -> absl::Status {
    if (probe == nullptr) return absl::InvalidArgumentError("probe is NULL");
    return client->client.load()->CheckExperts(eplb::c::MakeProbe(probe, user), stream);
  });
}

int32_t eplb_client_carry(eplb_client* client, const int32_t* physical_to_logical_map,
                          size_t num_cells, void* stream) noexcept {
  return CallOnTrainingThread(client, "carry", Needs::kOpen, [&]() -> absl::Status {
    if ((physical_to_logical_map == nullptr) != (num_cells == 0)) {
      return absl::InvalidArgumentError(
          physical_to_logical_map == nullptr
              ? absl::StrCat("physical_to_logical_map is NULL, num_cells is ", num_cells)
              : "num_cells is 0; expected num_layers * num_slots, or NULL for the placement in "
                "force");
    }
    return client->client.load()->Carry({physical_to_logical_map, num_cells}, stream);
  });
}

int32_t eplb_client_record(eplb_client* client, int32_t layer, const int64_t* counts,
                           size_t num_experts) noexcept {
  return CallOnTrainingThread(client, "record", Needs::kOpen, [&]() -> absl::Status {
    if (counts == nullptr) return absl::InvalidArgumentError("counts is NULL");
    return client->client.load()->Record(layer, {counts, num_experts});
  });
}

int32_t eplb_client_record_step_time(eplb_client* client, double seconds) noexcept {
  return CallOnTrainingThread(client, "record_step_time", Needs::kOpen,
                              [&] { return client->client.load()->RecordStepTime(seconds); });
}

int32_t eplb_client_record_split(eplb_client* client, int32_t layer, const int64_t* quotas,
                                 size_t num_slots) noexcept {
  return CallOnTrainingThread(client, "record_split", Needs::kOpen, [&]() -> absl::Status {
    if (quotas == nullptr) return absl::InvalidArgumentError("quotas is NULL");
    return client->client.load()->RecordSplit(layer, {quotas, num_slots});
  });
}

int32_t eplb_client_step_boundary(eplb_client* client, int64_t step, void* stream,
                                  eplb_boundary* result) noexcept {
  eplb_boundary empty = {};
  empty.reason = "";
  eplb::c::Clear(result, empty);
  return CallOnTrainingThread(client, "step_boundary", Needs::kOpen, [&]() -> absl::Status {
    if (result != nullptr) EPLB_RETURN_IF_ERROR(CheckFillable("result", result));
    EPLB_ASSIGN_OR_RETURN(client->boundary, client->client.load()->StepBoundary(step, stream));
    client->boundary.reason = eplb::Printable(client->boundary.reason);
    if (result != nullptr) FillStruct(eplb::c::BoundaryOf(client->boundary), result);
    return absl::OkStatus();
  });
}

int32_t eplb_client_placement(const eplb_client* client, eplb_placement* placement) noexcept {
  eplb::c::Clear(placement);
  return ReadOnlyCall(client, "placement", Needs::kConnected, [&]() -> absl::Status {
    EPLB_RETURN_IF_ERROR(CheckFillable("placement", placement));
    FillStruct(eplb::c::PlacementOf(client->client.load()->placement()), placement);
    return absl::OkStatus();
  });
}

int32_t eplb_client_row_placement(const eplb_client* client, eplb_placement* placement) noexcept {
  eplb::c::Clear(placement);
  return ReadOnlyCall(client, "row_placement", Needs::kConnected, [&]() -> absl::Status {
    EPLB_RETURN_IF_ERROR(CheckFillable("placement", placement));
    FillStruct(eplb::c::PlacementOf(client->client.load()->row_placement()), placement);
    return absl::OkStatus();
  });
}

int32_t eplb_client_device_tables(const eplb_client* client, eplb_device_tables* tables) noexcept {
  eplb::c::Clear(tables);
  return ReadOnlyCall(client, "device_tables", Needs::kConnected, [&]() -> absl::Status {
    EPLB_RETURN_IF_ERROR(CheckFillable("tables", tables));
    FillStruct(eplb::c::TablesOf(client->client.load()->device_tables()), tables);
    return absl::OkStatus();
  });
}

int32_t eplb_client_transport(const eplb_client* client, const char** transport) noexcept {
  return ReadOnlyCall(client, "transport", Needs::kConnected, [&]() -> absl::Status {
    if (transport == nullptr) return absl::InvalidArgumentError("transport is NULL");
    *transport = client->NameOfTransport();
    return absl::OkStatus();
  });
}

int32_t eplb_client_run_id(const eplb_client* client, const char** run_id) noexcept {
  return ReadOnlyCall(client, "run_id", Needs::kConnected, [&]() -> absl::Status {
    if (run_id == nullptr) return absl::InvalidArgumentError("run is NULL");
    *run_id = client->client.load()->run_id().c_str();
    return absl::OkStatus();
  });
}

int32_t eplb_client_stats(const eplb_client* client, eplb_stats* stats) noexcept {
  eplb::c::Clear(stats);
  return ReadOnlyCall(client, "stats", Needs::kConnected, [&]() -> absl::Status {
    EPLB_RETURN_IF_ERROR(CheckFillable("stats", stats));
    FillStruct(eplb::c::StatsOf(client->client.load()->stats()), stats);
    return absl::OkStatus();
  });
}

int32_t eplb_client_close(eplb_client* client, const char* reason) noexcept {
  return CallOnTrainingThread(client, "close", Needs::kNothing, [&]() -> absl::Status {
    if (client->closed) return absl::OkStatus();
    client->closed = true;
    if (client->client == nullptr) return absl::OkStatus();
    client->client.load()->Close(reason == nullptr ? "finished" : reason);
    return absl::OkStatus();
  });
}

}  // extern "C"

extern "C" int32_t eplb_client_options_init(eplb_client_options* options,
                                            size_t struct_size) noexcept {
  return eplb::c::CatchAll([&]() -> absl::Status {
    if (options == nullptr) return absl::InvalidArgumentError("options is NULL");
    EPLB_RETURN_IF_ERROR(eplb::c::CheckStructSize<eplb_client_options>("options", struct_size));
    options->struct_size = struct_size;
    eplb::c::FillStruct(eplb::c::DefaultClientOptions(), options);
    return absl::OkStatus();
  });
}
