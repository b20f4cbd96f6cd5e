// Divides the moves of replicas into posts, and a post into rounds.
#include "client/rows/replica_posts.h"

#include <algorithm>
#include <limits>
#include <map>
#include <string>
#include <utility>

#include "absl/strings/escaping.h"
#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"

#include "base/errors.h"
#include "base/status_macros.h"
#include "client/rows/staging.h"
#include "cuda/checksum.h"
#include "placement/edge_colouring.h"

namespace eplb {
namespace {

// Tensors of each layer, in the order in which they were given.
using ByLayer = std::map<LayerId, std::vector<const ReplicaTensor*>>;

ByLayer SortByLayer(std::span<const ReplicaTensor> tensors) {
  ByLayer layers;
  for (const ReplicaTensor& tensor : tensors) layers[tensor.rows.layer].push_back(&tensor);
  return layers;
}

class Planner {
 public:
  Planner(const Topology& topology, GpuId gpu, ReplicaFlow flow, int64_t staging_bytes,
          int32_t first_row)
      : topology_(topology),
        gpu_(gpu),
        flow_(flow),
        staging_bytes_(staging_bytes),
        first_row_(first_row),
        used_bytes_(static_cast<size_t>(topology_.num_gpus())),
        num_rows_(static_cast<size_t>(topology_.num_gpus())) {}

  absl::Status AddLayer(const Placement& placement, LayerId layer,
                        std::span<const ReplicaTensor* const> tensors) {
    for (int32_t expert = 0; expert < topology_.num_experts(); ++expert) {
      const std::span<const int32_t> slots = placement.ReplicasOf(layer, ExpertId{expert});
      for (size_t replica = 1; replica < slots.size(); ++replica) {
        EPLB_RETURN_IF_ERROR(AddReplica(SlotId{slots[0]}, SlotId{slots[replica]},
                                        static_cast<int32_t>(replica), tensors));
      }
    }
    return absl::OkStatus();
  }

  absl::StatusOr<std::vector<ReplicaPost>> Finish() && {
    EPLB_RETURN_IF_ERROR(ClosePost());
    return std::move(posts_);
  }

 private:
  absl::Status AddReplica(SlotId primary, SlotId slot, int32_t replica,
                          std::span<const ReplicaTensor* const> tensors) {
    new_edge_ = true;
    for (const ReplicaTensor* tensor : tensors) {
      ReplicaMove move{
          .tensor = tensor, .source = slot, .destination = primary, .replica = replica};
      if (flow_ == ReplicaFlow::kFromPrimary) std::swap(move.source, move.destination);
      EPLB_RETURN_IF_ERROR(Add(move));
    }
    return absl::OkStatus();
  }

  absl::Status Add(ReplicaMove move) {
    const GpuId from = topology_.GpuOf(move.source);
    const GpuId to = topology_.GpuOf(move.destination);
    const int64_t staged = from == to ? 0 : RoundUpToStaging(move.tensor->rows.row_bytes);
    EPLB_RETURN_IF_ERROR(Place(to, staged, move));
    if (from != to && std::exchange(new_edge_, false)) edges_.push_back({from.value, to.value});
    is_open_ = true;
    if (from != gpu_ && to != gpu_) return absl::OkStatus();
    edge_of_move_.push_back(from == to ? kNoEdge : edges_.size() - 1);
    moves_.push_back(move);
    return absl::OkStatus();
  }

  // Finds room in the staging of `to`, in the next post if this one has none.
  absl::Status Place(GpuId to, int64_t staged, ReplicaMove& move) {
    const auto gpu = static_cast<size_t>(to.value);
    if (staged > staging_bytes_) {
      const ExpertTensor& rows = move.tensor->rows;
      return ResourceExhausted("tensor \"", rows.name, "\": a row of ", rows.row_bytes,
                               " bytes is larger than the staging of ", staging_bytes_, " bytes");
    }
    if (used_bytes_[gpu] + staged > staging_bytes_ || num_rows_[gpu] == kMaxReplicaRows) {
      EPLB_RETURN_IF_ERROR(ClosePost());
      new_edge_ = true;
    }
    move.row = first_row_ + num_rows_[gpu];
    move.offset = used_bytes_[gpu];
    used_bytes_[gpu] += staged;
    ++num_rows_[gpu];
    return absl::OkStatus();
  }

  absl::Status ClosePost() {
    if (!std::exchange(is_open_, false)) return absl::OkStatus();
    EPLB_ASSIGN_OR_RETURN(const EdgeColouring colouring,
                          ColourEdges(edges_, topology_.num_gpus(), topology_.num_gpus()));
    for (size_t i = 0; i < moves_.size(); ++i) {
      if (edge_of_move_[i] != kNoEdge) moves_[i].round = colouring.colours[edge_of_move_[i]];
    }
    posts_.push_back({.moves = std::move(moves_), .has_links = !edges_.empty()});
    moves_.clear();
    edges_.clear();
    edge_of_move_.clear();
    std::ranges::fill(used_bytes_, 0);
    std::ranges::fill(num_rows_, 0);
    return absl::OkStatus();
  }

  static constexpr size_t kNoEdge = std::numeric_limits<size_t>::max();

  const Topology& topology_;
  const GpuId gpu_;
  const ReplicaFlow flow_;
  const int64_t staging_bytes_;
  const int32_t first_row_;
  std::vector<ReplicaPost> posts_;
  // State of the post that is being filled.
  bool is_open_ = false;
  bool new_edge_ = false;  // the next row is the first of its replica in this post
  std::vector<ReplicaMove> moves_;
  std::vector<size_t> edge_of_move_;
  std::vector<BipartiteEdge> edges_;  // replicas of all GPUs that are sent; tensors share a round
  std::vector<int64_t> used_bytes_;   // [G]
  std::vector<int32_t> num_rows_;     // [G]
};

}  // namespace

int32_t FirstRowOf(std::string_view call, std::span<const ReplicaTensor> tensors) {
  std::string text(call);
  for (const ReplicaTensor& tensor : tensors) {
    absl::StrAppend(&text, "\n", tensor.rows.layer.value, " ", static_cast<int>(tensor.type), " ",
                    tensor.rows.row_bytes, " ", tensor.rows.name);
  }
  const uint64_t sum = cuda::ChecksumOnHost(std::as_bytes(std::span(text)));
  constexpr uint64_t kCalls = (uint64_t{1} << 31) / kMaxReplicaRows;
  return static_cast<int32_t>(sum % kCalls) * kMaxReplicaRows;
}

absl::StatusOr<std::vector<ReplicaPost>> PlanReplicaPosts(const Placement& placement, GpuId gpu,
                                                          std::span<const ReplicaTensor> tensors,
                                                          ReplicaFlow flow, int64_t staging_bytes,
                                                          int32_t first_row) {
  Planner planner(placement.topology(), gpu, flow, staging_bytes, first_row);
  for (const auto& [layer, of_layer] : SortByLayer(tensors)) {
    EPLB_RETURN_IF_ERROR(planner.AddLayer(placement, layer, of_layer));
  }
  return std::move(planner).Finish();
}

absl::Status CheckReplicaTensors(const Topology& topology, GpuId gpu,
                                 std::span<const ReplicaTensor> tensors, ReplicaFlow flow) {
  std::vector<ExpertTensor> rows;
  for (const ReplicaTensor& tensor : tensors) {
    if (absl::StrContains(tensor.rows.name, '\n')) {
      return InvalidInput("tensor \"", absl::CEscape(tensor.rows.name),
                          "\": expected a name of one line");
    }
    EPLB_RETURN_IF_ERROR(CheckTensor(topology, gpu, tensor.rows));
    const int64_t element_bytes = cuda::ElementBytes(tensor.type);
    if (flow == ReplicaFlow::kToPrimary && tensor.rows.row_bytes % element_bytes != 0) {
      return InvalidInput("tensor \"", tensor.rows.name, "\": row_bytes is ", tensor.rows.row_bytes,
                          ", expected a multiple of the element's ", element_bytes);
    }
    rows.push_back(tensor.rows);
  }
  return CheckRowsApart(rows);
}

}  // namespace eplb
