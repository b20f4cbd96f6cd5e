// The calls of the C ABI that make, use and destroy a client.
#include "client/client.h"

#include <memory>
#include <utility>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/strings/str_cat.h"

#include "base/foreign_text.h"
#include "base/status_macros.h"
#include "client/c/arguments.h"
#include "client/c/client_handle.h"
#include "client/c/eplb.h"
#include "client/c/structs.h"

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

// Clears a result, so that a call that fails, or one in a forked child, leaves nothing unwritten.
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
  result.votes_next = boundary.votes_next ? 1 : 0;
  result.window_ends_next = boundary.window_ends_next ? 1 : 0;
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

// Fills the caller's struct with `get`, (const Client&) -> Struct.
template <class Struct, class Get>
int32_t Fill(const eplb_client* handle, const char* call, const char* argument, Struct* result,
             const Get& get) noexcept {
  Clear(result);
  return Read(handle, call, [&](const Client& client) -> absl::Status {
    EPLB_RETURN_IF_ERROR(CheckFillable(argument, result));
    FillStruct(get(client), result);
    return absl::OkStatus();
  });
}

}  // namespace
}  // namespace eplb::c

using eplb::Client;
using eplb::c::Act;
using eplb::c::CallOnTrainingThread;
using eplb::c::CheckFillable;
using eplb::c::CheckNotNull;
using eplb::c::Fill;
using eplb::c::FillStruct;
using eplb::c::Needs;
using eplb::c::Read;

extern "C" {

int32_t eplb_client_options_init(eplb_client_options* options, size_t struct_size) noexcept {
  return eplb::c::InitStruct(eplb::c::DefaultClientOptions(), options, struct_size);
}

int32_t eplb_client_create(eplb_client** client) noexcept {
  return eplb::c::CatchAll([&]() -> absl::Status {
    EPLB_RETURN_IF_ERROR(CheckNotNull("create: client", client));
    *client = std::make_unique<eplb_client>().release();
    return absl::OkStatus();
  });
}

void eplb_client_destroy(eplb_client* client) noexcept { delete client; }

const char* eplb_client_message(const eplb_client* client) noexcept {
  return client == nullptr ? eplb_last_message() : client->message.c_str();
}

int32_t eplb_client_on_wait(eplb_client* client, eplb_wait wait, void* user) noexcept {
  return CallOnTrainingThread(client, "on_wait", Needs::kNothing, [&]() -> absl::Status {
    client->wait = wait;
    client->wait_user = user;
    return absl::OkStatus();
  });
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
  return Act(client, "register_experts", [&](Client& connected) -> absl::Status {
    EPLB_ASSIGN_OR_RETURN(const std::vector<eplb::ExpertTensorView> views,
                          eplb::c::ReadTensors(tensors, num_tensors));
    return connected.RegisterExperts(views);
  });
}

int32_t eplb_client_check_experts(eplb_client* client, eplb_probe probe, void* user,
                                  void* stream) noexcept {
  return Act(client, "check_experts", [&](Client& connected) -> absl::Status {
    if (probe == nullptr) return absl::InvalidArgumentError("probe is NULL");
    return connected.CheckExperts(eplb::c::MakeProbe(probe, user), stream);
  });
}

int32_t eplb_client_carry(eplb_client* client, const int32_t* physical_to_logical_map,
                          size_t num_cells, void* stream) noexcept {
  return Act(client, "carry", [&](Client& connected) -> absl::Status {
    if ((physical_to_logical_map == nullptr) != (num_cells == 0)) {
      return absl::InvalidArgumentError(
          physical_to_logical_map == nullptr
              ? absl::StrCat("physical_to_logical_map is NULL, num_cells is ", num_cells)
              : "num_cells is 0; expected num_layers * num_slots, or NULL for the current "
                "placement");
    }
    return connected.Carry({physical_to_logical_map, num_cells}, stream);
  });
}

int32_t eplb_client_record(eplb_client* client, int32_t layer, const int64_t* counts,
                           size_t num_experts) noexcept {
  return Act(client, "record", [&](Client& connected) -> absl::Status {
    EPLB_RETURN_IF_ERROR(CheckNotNull("counts", counts));
    return connected.Record(layer, {counts, num_experts});
  });
}

int32_t eplb_client_record_step_time(eplb_client* client, double seconds) noexcept {
  return Act(client, "record_step_time",
             [&](Client& connected) { return connected.RecordStepTime(seconds); });
}

int32_t eplb_client_vote_no(eplb_client* client, const char* reason) noexcept {
  return Act(client, "vote_no", [&](Client& connected) -> absl::Status {
    EPLB_RETURN_IF_ERROR(CheckNotNull("reason", reason));
    if (*reason == '\0') return absl::InvalidArgumentError("reason is empty");
    connected.VoteNo(reason);
    return absl::OkStatus();
  });
}

int32_t eplb_client_record_split(eplb_client* client, int32_t layer, const int64_t* quotas,
                                 size_t num_slots) noexcept {
  return Act(client, "record_split", [&](Client& connected) -> absl::Status {
    EPLB_RETURN_IF_ERROR(CheckNotNull("quotas", quotas));
    return connected.RecordSplit(layer, {quotas, num_slots});
  });
}

int32_t eplb_client_step_boundary(eplb_client* client, int64_t step, void* stream,
                                  eplb_boundary* result) noexcept {
  eplb_boundary empty = {};
  empty.reason = "";
  eplb::c::Clear(result, empty);
  return Act(client, "step_boundary", [&](Client& connected) -> absl::Status {
    if (result != nullptr) EPLB_RETURN_IF_ERROR(CheckFillable("result", result));
    EPLB_ASSIGN_OR_RETURN(client->boundary, connected.StepBoundary(step, stream));
    client->boundary.reason = eplb::Printable(client->boundary.reason);
    if (result != nullptr) FillStruct(eplb::c::BoundaryOf(client->boundary), result);
    return absl::OkStatus();
  });
}

int32_t eplb_client_placement(const eplb_client* client, eplb_placement* placement) noexcept {
  return Fill(client, "placement", "placement", placement,
              [](const Client& connected) { return eplb::c::PlacementOf(connected.placement()); });
}

int32_t eplb_client_row_placement(const eplb_client* client, eplb_placement* placement) noexcept {
  return Fill(client, "row_placement", "placement", placement, [](const Client& connected) {
    return eplb::c::PlacementOf(connected.row_placement());
  });
}

int32_t eplb_client_device_tables(const eplb_client* client, eplb_device_tables* tables) noexcept {
  return Fill(client, "device_tables", "tables", tables,
              [](const Client& connected) { return eplb::c::TablesOf(connected.device_tables()); });
}

int32_t eplb_client_stats(const eplb_client* client, eplb_stats* stats) noexcept {
  return Fill(client, "stats", "stats", stats,
              [](const Client& connected) { return eplb::c::StatsOf(connected.stats()); });
}

int32_t eplb_client_transport(const eplb_client* client, const char** transport) noexcept {
  return Read(client, "transport", [&](const Client&) -> absl::Status {
    EPLB_RETURN_IF_ERROR(CheckNotNull("transport", transport));
    *transport = client->NameOfTransport();
    return absl::OkStatus();
  });
}

int32_t eplb_client_run_id(const eplb_client* client, const char** run_id) noexcept {
  return Read(client, "run_id", [&](const Client& connected) -> absl::Status {
    EPLB_RETURN_IF_ERROR(CheckNotNull("run_id", run_id));
    *run_id = connected.run_id().c_str();
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
