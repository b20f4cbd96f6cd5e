// Makes the moves of a post: brings rows into staging, then adds or copies them.
#include "client/rows/replica_rows.h"

#include <algorithm>
#include <map>
#include <utility>

#include "base/status_macros.h"
#include "client/rows/expert_tensors.h"

namespace eplb {
namespace {

class PostWork {
 public:
  PostWork(const ReplicaPost& post, ReplicaFlow flow, const EpGroupCall& call)
      : post_(post), flow_(flow), call_(call), topology_(call.placement.topology()) {}

  // Brings rows of other ranks into staging.
  absl::Status Bring() const {
    if (!post_.has_links) {
      EPLB_RETURN_IF_ERROR(call_.carrier.AwaitLastBatch(call_.deadline).status());
      return call_.carrier.queue().Follow(call_.stream);
    }
    EPLB_ASSIGN_OR_RETURN(const Ticket ticket, call_.carrier.Post(Moves()));
    return call_.carrier.Await(ticket).status();
  }

  absl::Status Apply() const {
    return flow_ == ReplicaFlow::kToPrimary ? AddArrived() : CopyArrived();
  }

 private:
  bool IsHere(SlotId slot) const { return topology_.GpuOf(slot) == call_.gpu; }

  std::span<std::byte> RowIn(const ReplicaMove& move, SlotId slot) const {
    return move.tensor->rows.Row(slot.value - topology_.FirstSlotOf(call_.gpu).value);
  }

  RankId RankOf(SlotId slot) const {
    return call_.ranks[static_cast<size_t>(topology_.GpuOf(slot).value)];
  }

  RowMoves Moves() const {
    RowMoves moves{
        .post_id = call_.next_post_id(), .deadline = call_.deadline, .stream = call_.stream};
    for (const ReplicaMove& move : post_.moves) {
      if (move.round < 0) continue;
      if (IsHere(move.source)) {
        moves.sends.push_back({.to = RankOf(move.destination),
                               .row = move.row,
                               .round = move.round,
                               .bytes = RowIn(move, move.source),
                               .staging_offset = move.offset});
      } else {
        moves.receives.push_back({.from = RankOf(move.source),
                                  .row = move.row,
                                  .round = move.round,
                                  .staging_offset = move.offset,
                                  .num_bytes = move.tensor->rows.row_bytes});
      }
    }
    const auto by_round = [](const auto& a, const auto& b) { return a.round < b.round; };
    std::ranges::stable_sort(moves.sends, by_round);
    std::ranges::stable_sort(moves.receives, by_round);
    return moves;
  }

  cuda::RowCopy ArrivalOf(const ReplicaMove& move) const {
    const std::span<std::byte> row = RowIn(move, move.destination);
    const std::byte* source = move.round < 0 ? RowIn(move, move.source).data()
                                             : call_.carrier.staging().data() + move.offset;
    return {
        .source = source, .destination = row.data(), .num_bytes = static_cast<int64_t>(row.size())};
  }

  // Adds replica 1 of all experts first, because batches of a queue run in their order.
  absl::Status AddArrived() const {
    using Kind = std::pair<int32_t, cuda::ElementType>;  // replica, type
    std::map<Kind, std::vector<cuda::RowCopy>> rows;
    for (const ReplicaMove& move : post_.moves) {
      if (!IsHere(move.destination)) continue;
      rows[{move.replica, move.tensor->type}].push_back(ArrivalOf(move));
    }
    // Waits now and then, because far more replicas than usual would fill the queue.
    constexpr int32_t kBatchesAtOnce = cuda::RowQueue::kMaxBatches / 4;
    int32_t num_batches = 0;
    for (const auto& [kind, additions] : rows) {
      EPLB_ASSIGN_OR_RETURN(const int64_t batch, call_.carrier.queue().Add(additions, kind.second));
      call_.carrier.SetLastBatch(batch);
      if (++num_batches % kBatchesAtOnce != 0) continue;
      EPLB_RETURN_IF_ERROR(call_.carrier.AwaitLastBatch(call_.deadline).status());
    }
    return absl::OkStatus();
  }

  absl::Status CopyArrived() const {
    std::vector<cuda::RowCopy> copies;
    for (const ReplicaMove& move : post_.moves) {
      if (IsHere(move.destination)) copies.push_back(ArrivalOf(move));
    }
    if (copies.empty()) return absl::OkStatus();
    EPLB_ASSIGN_OR_RETURN(const int64_t batch, call_.carrier.queue().CopyUnsummed(copies));
    call_.carrier.SetLastBatch(batch);
    return absl::OkStatus();
  }

  const ReplicaPost& post_;
  const ReplicaFlow flow_;
  const EpGroupCall& call_;
  const Topology& topology_;
};

}  // namespace

absl::Status CarryReplicaRows(std::span<const ReplicaPost> posts, ReplicaFlow flow,
                              const EpGroupCall& call) {
  for (const ReplicaPost& post : posts) {
    const PostWork work(post, flow, call);
    EPLB_RETURN_IF_ERROR(work.Bring());
    EPLB_RETURN_IF_ERROR(work.Apply());
  }
  return posts.empty() ? absl::OkStatus() : call.carrier.queue().LetFollow(call.stream);
}

}  // namespace eplb
