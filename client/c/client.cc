#include "client/client.h"

#include <memory>
#include <span>
#include <string>
#include <utility>

#include "client/c/callbacks.h"
#include "client/c/client_handle.h"
#include "client/c/client_options.h"
#include "client/c/eplb.h"
#include "client/c/report.h"
#include "client/c/structs.h"

using eplb::c::Act;
using eplb::c::CheckFillable;
using eplb::c::FillStruct;
using eplb::c::Look;
using eplb::c::Needs;

namespace eplb::c {
namespace {

absl::Status RefuseSecondConnect(const eplb_client& handle) {
  if (handle.closed) return absl::FailedPreconditionError("connect came after close");
  if (handle.client != nullptr) return absl::FailedPreconditionError("connect came twice");
  return absl::OkStatus();
}

absl::Status Connect(eplb_client& handle, ClientOptions options, Exchange exchange) {
  EPLB_ASSIGN_OR_RETURN(std::unique_ptr<Client> client,
                        Client::Connect(std::move(options), std::move(exchange)));
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

}  // namespace
}  // namespace eplb::c

extern "C" {

int32_t eplb_client_create(eplb_client** client) noexcept {
  return eplb::c::Guarded([&] {
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
                            eplb_exchange exchange, void* user) noexcept {
  return Act(client, "connect", Needs::kNothing, [&]() -> absl::Status {
    EPLB_RETURN_IF_ERROR(eplb::c::RefuseSecondConnect(*client));
    EPLB_ASSIGN_OR_RETURN(eplb::ClientOptions known, eplb::c::ReadClientOptions(options));
    if (exchange == nullptr) return absl::InvalidArgumentError("exchange is NULL");
    const int32_t rank = known.rank;
    return eplb::c::Connect(*client, std::move(known), eplb::c::MakeExchange(exchange, user, rank));
  });
}

int32_t eplb_client_connect_through_daemon(eplb_client* client,
                                           const eplb_client_options* options) noexcept {
  return Act(client, "connect_through_daemon", Needs::kNothing, [&]() -> absl::Status {
    EPLB_RETURN_IF_ERROR(eplb::c::RefuseSecondConnect(*client));
    EPLB_ASSIGN_OR_RETURN(eplb::ClientOptions known, eplb::c::ReadClientOptions(options));
    eplb::Exchange exchange = eplb::MakeDaemonExchange(known);
    return eplb::c::Connect(*client, std::move(known), std::move(exchange));
  });
}

int32_t eplb_client_register_experts(eplb_client* client, const eplb_tensor* tensors,
                                     size_t num_tensors) noexcept {
  return Act(client, "register_experts", Needs::kOpen, [&]() -> absl::Status {
    EPLB_ASSIGN_OR_RETURN(const std::vector<eplb::ExpertTensorView> views,
                          eplb::c::ReadTensors(tensors, num_tensors));
    return client->client.load()->RegisterExperts(views);
  });
}

int32_t eplb_client_check_experts(eplb_client* client, eplb_probe probe, void* user,
                                  void* stream) noexcept {
  return Act(client, "check_experts", Needs::kOpen, [&]() -> absl::Status {
    if (probe == nullptr) return absl::InvalidArgumentError("probe is NULL");
    return client->client.load()->CheckExperts(eplb::c::MakeProbe(probe, user), stream);
  });
}

int32_t eplb_client_record(eplb_client* client, int32_t layer, const int64_t* counts,
                           size_t num_experts) noexcept {
  return Act(client, "record", Needs::kOpen, [&]() -> absl::Status {
    if (counts == nullptr) return absl::InvalidArgumentError("counts is NULL");
    return client->client.load()->Record(layer, {counts, num_experts});
  });
}

int32_t eplb_client_step_boundary(eplb_client* client, int64_t step, void* stream,
                                  eplb_boundary* result) noexcept {
  eplb_boundary empty = {};
  empty.reason = "";
  eplb::c::Clear(result, empty);
  return Act(client, "step_boundary", Needs::kOpen, [&]() -> absl::Status {
    if (result != nullptr) EPLB_RETURN_IF_ERROR(CheckFillable("result", result));
    EPLB_ASSIGN_OR_RETURN(client->boundary, client->client.load()->StepBoundary(step, stream));
    if (result != nullptr) FillStruct(eplb::c::BoundaryOf(client->boundary), result);
    return absl::OkStatus();
  });
}

int32_t eplb_client_placement(const eplb_client* client, eplb_placement* placement) noexcept {
  eplb::c::Clear(placement);
  return Look(client, "placement", Needs::kConnected, [&]() -> absl::Status {
    EPLB_RETURN_IF_ERROR(CheckFillable("placement", placement));
    FillStruct(eplb::c::PlacementOf(client->client.load()->placement()), placement);
    return absl::OkStatus();
  });
}

int32_t eplb_client_device_tables(const eplb_client* client, eplb_device_tables* tables) noexcept {
  eplb::c::Clear(tables);
  return Look(client, "device_tables", Needs::kConnected, [&]() -> absl::Status {
    EPLB_RETURN_IF_ERROR(CheckFillable("tables", tables));
    FillStruct(eplb::c::TablesOf(client->client.load()->device_tables()), tables);
    return absl::OkStatus();
  });
}

int32_t eplb_client_transport(const eplb_client* client, const char** transport) noexcept {
  return Look(client, "transport", Needs::kConnected, [&]() -> absl::Status {
    if (transport == nullptr) return absl::InvalidArgumentError("transport is NULL");
    *transport = client->NameOfTransport();
    return absl::OkStatus();
  });
}

int32_t eplb_client_incarnation(const eplb_client* client, const char** incarnation) noexcept {
  return Look(client, "incarnation", Needs::kConnected, [&]() -> absl::Status {
    if (incarnation == nullptr) return absl::InvalidArgumentError("incarnation is NULL");
    *incarnation = client->client.load()->incarnation().c_str();
    return absl::OkStatus();
  });
}

int32_t eplb_client_stats(const eplb_client* client, eplb_stats* stats) noexcept {
  eplb::c::Clear(stats);
  return Look(client, "stats", Needs::kConnected, [&]() -> absl::Status {
    EPLB_RETURN_IF_ERROR(CheckFillable("stats", stats));
    FillStruct(eplb::c::StatsOf(client->client.load()->stats()), stats);
    return absl::OkStatus();
  });
}

int32_t eplb_client_close(eplb_client* client, const char* reason) noexcept {
  return Act(client, "close", Needs::kNothing, [&]() -> absl::Status {
    if (client->closed) return absl::OkStatus();
    client->closed = true;
    if (client->client == nullptr) return absl::OkStatus();
    client->client.load()->Close(reason == nullptr ? "finished" : reason);
    return absl::OkStatus();
  });
}

}  // extern "C"
