// Client::Carry: all registered rows go to another placement and back, and the current version
// stays.
#include <algorithm>
#include <cstring>
#include <limits>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"

#include "base/errors.h"
#include "base/monotonic_clock.h"
#include "base/status_macros.h"
#include "client/client_impl.h"

namespace eplb {
namespace {

constexpr int64_t kNoRank = std::numeric_limits<int64_t>::max();

// 63 bits of a digest, so that a minimum of their negatives is their maximum.
int64_t BitsOf(const Digest& digest) {
  uint64_t bits = 0;
  static_assert(sizeof(digest.bytes) >= sizeof(bits));
  std::memcpy(&bits, digest.bytes.data(), sizeof(bits));
  return static_cast<int64_t>(bits >> 1);
}

std::vector<LayerId> LayersThatDiffer(const Placement& from, const Placement& to) {
  std::vector<LayerId> layers;
  for (int32_t layer = 0; layer < from.topology().num_layers(); ++layer) {
    if (from.Layer(LayerId{layer}) == to.Layer(LayerId{layer})) continue;
    layers.push_back(LayerId{layer});
  }
  return layers;
}

std::string Named(std::span<const LayerId> layers) {
  std::vector<int32_t> numbers;
  for (const LayerId layer : layers) numbers.push_back(layer.value);
  return absl::StrCat("carry: the rows of ", layers.size() == 1 ? "layer " : "layers ",
                      absl::StrJoin(numbers, ", "));
}

}  // namespace

absl::Status Client::Impl::CheckNotCarried(const char* name) const {
  if (carried_ == nullptr) return absl::OkStatus();
  return FailedPrecondition(name, ": the rows of the experts were carried to placement ",
                            row_tables_->view().digest, ", version ", running_.version,
                            " is in force; carry them back first");
}

absl::StatusOr<Placement> Client::Impl::TargetOf(
    std::span<const int32_t> physical_to_logical_map) const {
  const IndexMatrix& here = running_.placement->physical_to_logical_map();
  if (physical_to_logical_map.empty()) return *running_.placement;
  if (std::ssize(physical_to_logical_map) != here.size()) {
    return InvalidInput("carry: the placement has ", physical_to_logical_map.size(),
                        " entries, expected ", here.rows(), " layers * ", here.cols(),
                        " slots = ", here.size());
  }
  // With its own order of replicas.
  if (std::equal(physical_to_logical_map.begin(), physical_to_logical_map.end(), here.data())) {
    return *running_.placement;
  }
  const Eigen::Map<const IndexMatrix> map(physical_to_logical_map.data(), here.rows(), here.cols());
  absl::StatusOr<Placement> target = Placement::FromSlots(topology_, map);
  if (target.ok()) return target;
  return absl::Status(target.status().code(), absl::StrCat("carry: ", target.status().message()));
}

absl::Status Client::Impl::NameDifference(const char* what, int64_t mine, int64_t lowest) {
  const int64_t self = options_.rank;
  const int64_t ranks[] = {mine == lowest ? self : kNoRank, mine == lowest ? kNoRank : self};
  const absl::StatusOr<std::vector<int64_t>> first =
      control_->AllReduceMin(ranks, options_.vote_deadline);
  if (!first.ok()) return End(next_step_ - 1, first.status(), /*target=*/nullptr);
  return FailedPrecondition("carry: ", what, " differs: rank ", first->front(),
                            " has another one than rank ", first->back(), "; nothing was moved");
}

absl::Status Client::Impl::AgreeOnCarry(const Digest& target, const absl::Status& mine) {
  const int64_t bits = BitsOf(target);
  const int64_t values[] = {mine.ok() ? kNoRank : options_.rank, bits, -bits, next_step_,
                            -next_step_};
  const absl::StatusOr<std::vector<int64_t>> least =
      control_->AllReduceMin(values, options_.vote_deadline);
  if (!least.ok()) return End(next_step_ - 1, least.status(), /*target=*/nullptr);
  const std::vector<int64_t>& found = *least;
  EPLB_RETURN_IF_ERROR(mine);
  if (found[0] != kNoRank) {
    return FailedPrecondition("carry: rank ", found[0],
                              " cannot carry its rows, and its error tells why; nothing was moved");
  }
  if (found[3] != -found[4]) return NameDifference("the next step", next_step_, found[3]);
  if (found[1] != -found[2]) return NameDifference("the placement", bits, found[1]);
  return absl::OkStatus();
}

absl::Status Client::Impl::StageOnAllRanks(const MigrationPlan& plan, const std::string& what) {
  const absl::StatusOr<Executor::Staged> staged =
      executor_->Stage(plan, {.post_id = ++num_posts_,
                              .deadline = MonotonicNow() + options_.transfer_deadline,
                              .stream = stream_});
  if (!executor_->may_vote()) {
    return End(next_step_ - 1, WritesGoOn(std::string(staged.status().message())),
               /*target=*/nullptr);
  }
  const int64_t mine[] = {staged.ok() ? 1 : 0};
  const absl::StatusOr<std::vector<int64_t>> minimum =
      control_->AllReduceMin(mine, options_.vote_deadline);
  if (!minimum.ok()) {
    executor_->Discard();
    return End(next_step_ - 1, minimum.status(), /*target=*/nullptr);
  }
  if (minimum->front() == 1) return absl::OkStatus();
  executor_->Discard();
  const std::string why =
      staged.ok() ? "the transfer failed on another rank" : std::string(staged.status().message());
  if (!executor_->may_vote()) return End(next_step_ - 1, WritesGoOn(why), /*target=*/nullptr);
  return Unavailable(what, " could not be moved: ", why);
}

absl::Status Client::Impl::EndAsMoved(const std::string& why) {
  const absl::Status lost = DataLoss(why);
  if (ended_.ok()) return End(next_step_ - 1, lost, /*target=*/nullptr);
  return ended_ = lost;
}

absl::Status Client::Impl::CarryLayers(std::span<const LayerId> layers, const Placement& target) {
  EPLB_ASSIGN_OR_RETURN(const MigrationPlan plan,
                        PlanMigration(RowPlacement(), target, layers, migration_));
  EPLB_RETURN_IF_ERROR(StageOnAllRanks(plan, Named(layers)));
  if (const absl::Status placed = executor_->Commit(stream_); !placed.ok()) {
    return End(next_step_ - 1,
               DataLoss(Named(layers), " could not be put into their slots: ", placed.message()),
               /*target=*/nullptr);
  }
  if (derived_.empty()) return absl::OkStatus();
  tables_.Update({.version = running_.version,
                  .digest = DigestOf(target),
                  .placement = std::make_shared<const Placement>(target)});
  const absl::Status rebuilt = RebuildDerived(derived_, plan, topology_, gpu());
  tables_.Update(running_);
  return rebuilt.ok() ? absl::OkStatus() : End(next_step_ - 1, rebuilt, /*target=*/nullptr);
}

absl::Status Client::Impl::Carry(std::span<const int32_t> physical_to_logical_map, void* stream) {
  if (disabled_) return absl::OkStatus();
  EPLB_RETURN_IF_ERROR(ended_);
  if (executor_ == nullptr) return FailedPrecondition("Carry was called before RegisterExperts");
  absl::StatusOr<Placement> target = TargetOf(physical_to_logical_map);
  absl::Status mine = target.status();
  mine.Update(CheckStream(stream));
  EPLB_RETURN_IF_ERROR(AgreeOnCarry(target.ok() ? DigestOf(*target) : Digest{}, mine));
  const std::vector<LayerId> layers = LayersThatDiffer(RowPlacement(), *target);
  if (layers.empty() && ahead_.has_value()) return absl::OkStatus();  // and the chunk goes on
  if (ahead_.has_value()) {
    // The staging is free once all ranks have stopped, and only now the stream can be checked.
    EPLB_RETURN_IF_ERROR(StopAheadHere("the rows were carried before the next vote"));
    EPLB_RETURN_IF_ERROR(AgreeOnCarry(DigestOf(*target), CheckStream(stream)));
  }
  stream_ = stream;
  const auto chunk = static_cast<size_t>(options_.layers_per_chunk);
  for (size_t first = 0; first < layers.size(); first += chunk) {
    const std::span<const LayerId> together =
        std::span(layers).subspan(first, std::min(chunk, layers.size() - first));
    absl::Status moved = CarryLayers(together, *target);
    if (moved.ok()) continue;
    if (first == 0) return moved;
    return EndAsMoved(
        absl::StrCat(moved.message(), ", ", first, " layers are in another placement already"));
  }
  posts_before_vote_ = num_posts_;
  if (*target == *running_.placement) {
    carried_.reset();
    return absl::OkStatus();
  }
  carried_ = std::make_shared<const Placement>(*std::move(target));
  const RunningPlacement rows = {
      .version = running_.version, .digest = DigestOf(*carried_), .placement = carried_};
  if (row_tables_ == nullptr) {
    row_tables_ = std::make_unique<PlacementTables>(rows, gpu());
  } else {
    row_tables_->Update(rows);
  }
  return absl::OkStatus();
}

absl::Status Client::InStaticOrder(const std::function<absl::Status()>& body, void* stream) {
  const PlacementView& rows = row_placement();
  const std::vector<int32_t> before(rows.physical_to_logical_map.begin(),
                                    rows.physical_to_logical_map.end());
  std::vector<int32_t> order;
  for (int32_t layer = 0; layer < rows.num_layers; ++layer) {
    for (int32_t slot = 0; slot < rows.num_slots; ++slot) order.push_back(slot % rows.num_experts);
  }
  EPLB_RETURN_IF_ERROR(Carry(order, stream));
  absl::Status status = body();
  status.Update(Carry(before, stream));
  return status;
}

}  // namespace eplb
