// The session's messages as plain values: what the daemon's core and a rank's member exchange,
// without protobuf. proto/eplb/v1/session.proto says what each field means; names are the same.
#ifndef EPLB_PROTO_WIRE_MESSAGES_H_
#define EPLB_PROTO_WIRE_MESSAGES_H_

#include <cstdint>
#include <optional>
#include <string>
#include <variant>
#include <vector>

#include "placement/digest.h"
#include "placement/load.h"
#include "placement/placement.h"
#include "proto/wire/job_memory.h"
#include "proto/wire/layer_list.h"

namespace eplb::wire {

enum class Reduce { kRank, kRoot };

struct TransportInfo {
  struct Setting {
    std::string name;
    std::string value;
    friend bool operator==(const Setting&, const Setting&) = default;
  };

  std::string name;
  std::string passed_over;
  std::optional<int32_t> device;
  std::string device_name;
  std::string nccl_version;
  std::string nccl_library;
  std::vector<Setting> settings;
  friend bool operator==(const TransportInfo&, const TransportInfo&) = default;
};

struct Hello {
  std::string job;
  std::string incarnation;
  uint64_t nonce = 0;
  int32_t rank = 0;
  int32_t world_size = 0;
  int32_t gpu = 0;
  int32_t lane = 0;
  TopologyOptions shape;
  int64_t running_version = 0;
  Digest running_digest;
  int64_t ready_version = 0;
  int64_t highest_term = 0;
  int64_t highest_version = 0;
  int64_t step = 0;
  int32_t vote_every = 0;
  int32_t report_every = 0;
  int64_t weight_bytes = 0;
  int64_t state_bytes = 0;
  int64_t staging_rows = 0;
  int64_t staging_layers = 0;  // 0: not said
  int64_t session_number = 0;
  std::string library_version;
  std::vector<int32_t> model_layers;
  Reduce reduce = Reduce::kRank;
  TransportInfo transport;
  int32_t num_pipeline_ranks = 1;
  int32_t expert_tensor_parallel = 1;
  int64_t launch = 0;  // 0: no daemon has numbered this launch yet
  bool take_over = false;
  CarriedMemory memory = {};
};

// Counts as they came: little-endian u32, row by row.
struct PackedCounts {
  int32_t num_layers = 0;
  int32_t num_experts = 0;
  std::string cells;  // [num_layers * num_experts * 4] bytes; empty: not packed
};

// Steps of a window up to last_step that ran under one placement, with counts as the window's.
struct LoadPart {
  int64_t last_step = 0;
  int64_t version = 0;
  LoadMatrix counts = {};
  PackedCounts packed = {};
};
inline constexpr int32_t kMaxLoadParts = 32;  // that a report tells

// Read its counts through report_counts.h: a report that came over the wire in u32 is not unpacked,
// which would cost the daemon more than adding it up.
struct LoadReport {
  int64_t first_step = 0;
  int64_t last_step = 0;
  LoadMatrix counts;  // [L, E], every cell >= 0; empty when they are packed
  int64_t dropped_steps = 0;
  PackedCounts packed;
  int64_t version = 0;                 // of the placement that the last steps ran under
  std::vector<LoadPart> earlier = {};  // the steps before, rising; in most windows none
  bool parts_unknown = false;          // more than kMaxLoadParts: `earlier` is empty
};

struct Ready {
  int64_t version = 0;
  Digest digest;
  Digest plan_hash;
};

enum class NackCode {
  kStaleTerm = 1,
  kStaleVersion,
  kWrongBase,
  kWrongDigest,
  kInvalid,
  kStagingTooSmall,
  kBusy
};

struct Nack {
  int64_t version = 0;
  NackCode code = NackCode::kInvalid;
  std::string detail;
};

struct Applied {
  int64_t version = 0;
  Digest digest;
  int64_t step = 0;
  int64_t received_bytes = 0;
  double pause_seconds = 0;
  std::string transport;    // what carries the rows, where Hello said otherwise; else empty
  std::string passed_over;  // why it changed
};

enum class FailedCode { kRetracted = 1, kTransfer, kSuperseded };

struct Failed {
  int64_t version = 0;
  FailedCode code = FailedCode::kSuperseded;
  std::string detail;
  int64_t step = 0;
};

struct PlacementBody {
  int64_t version = 0;
  Digest digest;
  Placement placement;
};

struct Goodbye {
  std::string reason;
  std::vector<int32_t> missing_ranks;
  bool failed = false;
};

struct Moved {
  int64_t term = 0;
  std::string endpoint;
};

using UpMessage =
    std::variant<Hello, LoadReport, Ready, Nack, Applied, Failed, PlacementBody, Goodbye, Moved>;

struct Welcome {
  int64_t term = 0;
  std::string server_version;
  std::string waits = {};  // why this launch is not balanced yet; empty: it is
};

struct Keep {
  int64_t launch = 0;
  CarriedMemory memory = {};
};

struct Propose {
  int64_t term = 0;
  int64_t version = 0;
  int64_t base_version = 0;
  Digest base_digest;
  Digest digest;
  LayerList layers;
  int32_t chunk = 0;
  int32_t num_chunks = 1;
  std::string reason;
  int64_t decided_first_step = 0;
  int64_t decided_last_step = 0;
  int64_t decision = 0;  // rising within a job; its chunks share it; 0: not said
  std::string policy;    // that decided; "rollback" when an operator named the placement
  std::string asked_by;  // an identity, when an operator asked for it
};

struct Retract {
  int64_t version = 0;
  std::string reason;
};

struct Pace {
  int32_t report_every = 0;
  int64_t from_step = 0;
};

struct NeedPlacement {
  Digest digest;
};

struct Drain {
  int32_t grace_ms = 0;
};

using DownMessage = std::variant<Welcome, Propose, Retract, Pace, NeedPlacement, Drain, Keep>;

}  // namespace eplb::wire

#endif  // EPLB_PROTO_WIRE_MESSAGES_H_
