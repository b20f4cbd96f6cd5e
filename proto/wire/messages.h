// Messages between the daemon's core and a rank's member as plain values, without protobuf.
// proto/eplb/v1/session.proto describes each field; names are the same.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <initializer_list>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <utility>
#include <variant>
#include <vector>

#include "absl/status/statusor.h"

#include "placement/digest.h"
#include "placement/evaluate.h"
#include "placement/load.h"
#include "placement/placement.h"
#include "proto/wire/settings.h"

namespace eplb::wire {

// Limits of a job, and the sizes of messages that follow from them. The reports and placements of
// every job that a daemon accepts fit into a message.

// Most layers times slots of a job: four times 128 layers of 2048 slots. A layer has at most as
// many experts as slots, so this bounds the cells of a load as well.
inline constexpr int64_t kMaxSlotsOfAllLayers = int64_t{1} << 20;
inline constexpr int64_t kMaxLayers = int64_t{1} << 16;

// Bytes of the counts of one report, including its parts: all cells as u64. A rank whose parts need
// more reports that they are unknown.
inline constexpr int64_t kMaxReportBytes = kMaxSlotsOfAllLayers * int64_t{sizeof(uint64_t)};

// Bytes of a placement: an expert and a rank for each slot, 21 bits with their sign and so 3 bytes
// each, and for each layer its number and 4 lengths and tags.
inline constexpr int64_t kMaxPlacementBytes = kMaxSlotsOfAllLayers * 6 + kMaxLayers * 24;
static_assert(kMaxPlacementBytes <= kMaxReportBytes);

// Other bytes of a message: names, numbers, sentences, a job's memory, the numbers of model layers,
// and for each layer four numbers of its splits, 9 bytes each.
inline constexpr int64_t kMaxRestBytes = (int64_t{1} << 20) + kMaxLayers * 36;
inline constexpr int64_t kMaxMessageBytes = kMaxReportBytes + kMaxRestBytes;

// Layers of a proposal. Copies share the layers until one of them is changed. A proposal goes to
// every rank of a job: for 58 x 288 slots and 2,000 ranks, full copies would be 268 MB.
// Threads: copies may be read and destroyed on different threads.
class LayerList {
 public:
  using Layers = std::vector<LayerPlacement>;

  LayerList() = default;
  LayerList(std::initializer_list<LayerPlacement> layers)
      : layers_(std::make_shared<Layers>(layers)) {}

  size_t size() const { return get().size(); }
  bool empty() const { return get().empty(); }
  Layers::const_iterator begin() const { return get().begin(); }
  Layers::const_iterator end() const { return get().end(); }
  const LayerPlacement& operator[](size_t i) const { return get()[i]; }
  const LayerPlacement& front() const { return get().front(); }
  const LayerPlacement& back() const { return get().back(); }
  // NOLINTNEXTLINE(google-explicit-constructor): reads like the vector that it stands for
  operator std::span<const LayerPlacement>() const { return get(); }

  void push_back(LayerPlacement layer) { Own().push_back(std::move(layer)); }
  // Inserts the layer in rising order, or replaces it. REQUIRES: the layers rise.
  void Put(LayerPlacement layer) {
    Layers& layers = Own();
    const auto place = std::ranges::lower_bound(layers, layer.layer, {}, &LayerPlacement::layer);
    if (place != layers.end() && place->layer == layer.layer) {
      *place = std::move(layer);
    } else {
      layers.insert(place, std::move(layer));
    }
  }
  void clear() { layers_.reset(); }
  LayerPlacement& front() { return Own().front(); }
  LayerPlacement& back() { return Own().back(); }

  // True if both are copies of one list and neither has changed since.
  bool SharesWith(const LayerList& other) const {
    return layers_ != nullptr && layers_ == other.layers_;
  }
  friend bool operator==(const LayerList& a, const LayerList& b) { return a.get() == b.get(); }

 private:
  const Layers& get() const {
    static const Layers none;
    return layers_ == nullptr ? none : *layers_;
  }
  Layers& Own() {
    if (layers_ == nullptr) layers_ = std::make_shared<Layers>();
    if (layers_.use_count() > 1) layers_ = std::make_shared<Layers>(*layers_);
    return *layers_;
  }

  std::shared_ptr<Layers> layers_;
};

// Facts of a job that no daemon may lose, as plain values. JobMemory of proto/eplb/v1/types.proto
// describes each field; names are the same.

struct EndedRun {
  std::string run_id;
  int64_t run_number = 0;
  friend bool operator==(const EndedRun&, const EndedRun&) = default;
};
inline constexpr size_t kMaxEndedRuns = 16;  // older runs have lower run numbers and are dropped

// Sums behind the time that a job saved; see SavedTime of proto/eplb/v1/types.proto.
struct SavedTime {
  double earlier_seconds = 0;
  double token_seconds = 0;
  double peak_tokens = 0;
  double step_seconds = 0;
  int64_t windows = 0;
  double peak_peak = 0;
  double peak_mean = 0;
  double mean_mean = 0;
  double peak_seconds = 0;
  double mean_seconds = 0;
  double seconds_seconds = 0;
  int64_t steps = 0;
  bool of_batches = false;
  bool earlier_assumed = false;
  friend bool operator==(const SavedTime&, const SavedTime&) = default;
};

struct JobMemory {
  int64_t term = 0;
  int64_t serial = 0;
  int64_t run_number = 0;
  std::string run_id = {};
  std::vector<EndedRun> gone = {};
  bool paused = false;
  std::string pause_reason = {};
  SettingsPatch settings = {};
  std::string quarantine = {};
  std::optional<int64_t> last_decision_step = std::nullopt;
  int32_t back_off_length = 0;
  int32_t back_off_to_skip = 0;
  int64_t account_windows = 0;
  std::optional<double> account_saved_peak_tokens = std::nullopt;
  double account_pause_seconds = 0;
  double report_seconds = 0;
  double gap_seconds = 0;
  int64_t next_version = 0;
  std::string slow_gpus = {};  // see ParseSpeeds
  bool paused_by_lost_store = false;
  SavedTime saved = {};

  friend bool operator==(const JobMemory&, const JobMemory&) = default;
};

// A memory that a rank carries. The daemon reads and writes `value`; a rank holds the bytes that it
// received, whatever version of the daemon wrote them.
struct CarriedMemory {
  std::string bytes = {};                         // empty: `value` has the content
  std::optional<JobMemory> value = std::nullopt;  // absent: no memory, or bytes of another version
};
inline constexpr size_t kMaxMemoryBytes = size_t{16} << 10;

// Returns a serialized JobMemory of proto/eplb/v1/types.proto, for the store and for Keep.
std::string MemoryBytes(const JobMemory& memory);
// errors: InvalidArgument, naming the field.
absl::StatusOr<JobMemory> MemoryFromBytes(const std::string& bytes);

enum class Reduce { kRank, kRoot };

// Returns "equal" or "batch", for clients and operators.
constexpr const char* SplitName(SplitMode split) {
  return split == SplitMode::kBatch ? "batch" : "equal";
}

struct TransportInfo {
  struct Setting {
    std::string name;
    std::string value;
    friend bool operator==(const Setting&, const Setting&) = default;
  };

  std::string name;
  std::string fallback_reason;
  std::optional<int32_t> device;
  std::string device_name;
  std::string nccl_version;
  std::string nccl_library;
  std::vector<Setting> settings;
  friend bool operator==(const TransportInfo&, const TransportInfo&) = default;
};

struct Hello {
  std::string job;
  std::string run_id;
  uint64_t nonce = 0;
  int32_t rank = 0;
  int32_t world_size = 0;
  int32_t gpu = 0;
  int32_t ep_group = 0;
  TopologyOptions shape;
  int64_t running_version = 0;
  Digest running_digest;
  int64_t prepared_version = 0;
  int64_t highest_term = 0;
  int64_t highest_version = 0;
  int64_t step = 0;
  int32_t vote_every = 0;
  int32_t report_every = 0;
  int64_t weight_bytes = 0;
  int64_t state_bytes = 0;
  int64_t staging_rows = 0;
  int64_t staging_layers = 0;  // 0: not known
  int64_t session_number = 0;
  std::string library_version;
  std::vector<int32_t> model_layers;
  Reduce reduce = Reduce::kRank;
  TransportInfo transport;
  int32_t pipeline_parallel_size = 1;
  int32_t expert_tensor_parallel = 1;
  int64_t run_number = 0;  // 0: no daemon has numbered this run yet
  bool take_over = false;
  CarriedMemory memory = {};
  SplitMode split = SplitMode::kEqual;
  // Not on the wire: name and version of a serving engine, whose questions the daemon turns into
  // this.
  std::string engine = {};
};

// Counts as they were received: little-endian u32, row by row.
struct PackedCounts {
  int32_t num_layers = 0;
  int32_t num_experts = 0;
  std::string cells;  // [num_layers * num_experts * 4] bytes; empty: not packed
};

// Steps of a window up to last_step that ran under one placement; counts have the window's form.
struct LoadPart {
  int64_t last_step = 0;
  int64_t version = 0;
  LoadMatrix counts = {};
  PackedCounts packed = {};
};
inline constexpr int32_t kMaxLoadParts = 32;  // in one report

// report_counts.h reads the counts. A report that was received in u32 is not unpacked, because that
// would cost the daemon more than adding it up.
struct LoadReport {
  int64_t first_step = 0;
  int64_t last_step = 0;
  LoadMatrix counts;  // [L, E], every cell >= 0; empty when they are packed
  int64_t dropped_steps = 0;
  PackedCounts packed;
  int64_t version = 0;                     // placement of the last steps
  std::vector<LoadPart> earlier = {};      // earlier steps, rising; in most windows none
  bool parts_unknown = false;              // more than kMaxLoadParts: `earlier` is empty
  std::vector<int64_t> split_tokens = {};  // [L] or empty
  std::vector<int64_t> split_peaks = {};   // [L] or empty
  // split_peaks if the batches had run under the static layout or with one slot per expert. Both
  // are empty in reports of older libraries.
  std::vector<int64_t> split_peaks_static = {};
  std::vector<int64_t> split_peaks_without_eplb = {};
  double step_seconds = 0;  // mean compute time of this rank's steps; 0: not recorded
};
inline constexpr double kMaxStepSeconds = 1e6;

struct Prepared {
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
  std::string transport;        // transport of the rows, if it is not that of Hello
  std::string fallback_reason;  // why it changed
};

enum class FailedCode { kCancelled = 1, kTransfer, kSuperseded };

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
    std::variant<Hello, LoadReport, Prepared, Nack, Applied, Failed, PlacementBody, Goodbye, Moved>;

struct Welcome {
  int64_t term = 0;
  std::string server_version;
  std::string waits = {};     // why this run is not balanced yet; empty if it is
  int64_t election_term = 0;  // see v1.Welcome
};

struct Keep {
  int64_t run_number = 0;
  CarriedMemory memory = {};
};

// Policy of a decision by which an operator named the placement.
inline constexpr char kRollbackPolicy[] = "rollback";

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
  int64_t decision = 0;  // rising within a job; its chunks share it; 0: not known
  std::string policy;    // policy that decided, or kRollbackPolicy
  std::string asked_by;  // identity of the operator who asked for it, if any
};

struct Cancel {
  int64_t version = 0;
  std::string reason;
};

struct SetReportInterval {
  int32_t report_every = 0;
  int64_t from_step = 0;
};

struct NeedPlacement {
  Digest digest;
};

struct Drain {
  int32_t grace_ms = 0;
};

using DownMessage =
    std::variant<Welcome, Propose, Cancel, SetReportInterval, NeedPlacement, Drain, Keep>;

}  // namespace eplb::wire
