#include <algorithm>
#include <condition_variable>
#include <mutex>
#include <optional>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/time/clock.h"

#include "client/rows/control/control_channel.h"
#include "client/rows/control/control_message.h"

namespace eplb {
namespace {

constexpr char kFarewell[] = "Farewell";
constexpr char kInprocClosed[] = "it has closed";

// Everything is guarded by `mutex`. (std::mutex rather than absl::Mutex: the packaged Abseil is
// built without ThreadSanitizer, which then cannot see what its mutex orders.)
struct Shared {
  explicit Shared(int32_t size) : arrived(size, false), gone(size, false) {}

  std::mutex mutex;
  std::condition_variable changed;
  int64_t call = 0;             // of the running collective
  std::vector<bool> arrived;    // [world_size], in the running collective
  std::vector<bool> gone;       // [world_size], channel destroyed
  std::string op;               // of the first rank that arrived
  std::vector<int64_t> least;   // over those that arrived
  std::vector<int64_t> result;  // of collective call - 1
  absl::Status broken;
};

class InprocChannel : public ControlChannel {
 public:
  InprocChannel(std::shared_ptr<Shared> shared, RankId rank, int32_t world_size)
      : shared_(std::move(shared)), rank_(rank), world_size_(world_size) {}

  ~InprocChannel() override {
    const std::lock_guard<std::mutex> lock(shared_->mutex);
    shared_->gone[rank_.value] = true;
    shared_->changed.notify_all();
  }

  RankId rank() const override { return rank_; }
  int32_t world_size() const override { return world_size_; }

  absl::StatusOr<std::vector<int64_t>> AllReduceMin(std::span<const int64_t> values,
                                                    absl::Duration timeout) override {
    if (values.empty() || values.size() > kMaxVoteValues) {
      return absl::InvalidArgumentError(
          absl::StrCat("AllReduceMin takes 1..", kMaxVoteValues, " values, got ", values.size()));
    }
    return Run(absl::StrCat("AllReduceMin of ", values.size(), " values"), values, timeout);
  }

  absl::Status Barrier(absl::Duration timeout) override {
    return Run("Barrier", {}, timeout).status();
  }

  absl::Status Farewell(absl::Duration timeout) override {
    return Run(kFarewell, {}, timeout).status();
  }

 private:
  absl::StatusOr<std::vector<int64_t>> Run(const std::string& op, std::span<const int64_t> values,
                                           absl::Duration timeout) {
    const absl::Time deadline = absl::Now() + timeout;
    std::unique_lock<std::mutex> lock(shared_->mutex);
    if (!shared_->broken.ok()) return shared_->broken;
    const int64_t call = shared_->call;
    if (absl::Status status = Arrive(op, values); !status.ok()) return Break(status);
    while (shared_->call == call && shared_->broken.ok()) {
      if (const std::vector<RankId> gone = Absent(shared_->gone); !gone.empty()) {
        return Break(MissingRanksError(op, gone, "connection closed"));
      }
      if (absl::Now() >= deadline) {
        return Break(MissingRanksError(
            op, Absent({}), absl::StrCat("no answer in ", absl::FormatDuration(timeout))));
      }
      // A day at most, so that an infinite deadline stays inside the clock's range.
      shared_->changed.wait_until(
          lock, absl::ToChronoTime(std::min(deadline, absl::Now() + absl::Hours(24))));
    }
    // A collective that completed counts, even when a later one has broken already.
    if (shared_->call == call) return shared_->broken;
    return shared_->result;
  }

  absl::Status Arrive(const std::string& op, std::span<const int64_t> values) {
    Shared& shared = *shared_;
    const bool first =
        std::find(shared.arrived.begin(), shared.arrived.end(), true) == shared.arrived.end();
    if (first) {
      shared.op = op;
      shared.least.assign(values.begin(), values.end());
    } else if (shared.op != op) {
      const RankId self = rank_;
      if (op == kFarewell) return MissingRanksError(shared.op, std::span(&self, 1), kInprocClosed);
      if (shared.op == kFarewell) return MissingRanksError(op, Arrived(), kInprocClosed);
      return MissingRanksError(op, std::span(&self, 1),
                               absl::StrCat("the other ranks called ", shared.op));
    }
    for (size_t i = 0; i < values.size(); ++i) {
      shared.least[i] = std::min(shared.least[i], values[i]);
    }
    shared.arrived[rank_.value] = true;
    if (std::find(shared.arrived.begin(), shared.arrived.end(), false) != shared.arrived.end()) {
      return absl::OkStatus();
    }
    shared.result = std::move(shared.least);
    std::fill(shared.arrived.begin(), shared.arrived.end(), false);
    ++shared.call;
    shared.changed.notify_all();
    return absl::OkStatus();
  }

  std::vector<RankId> Arrived() const {
    std::vector<RankId> ranks;
    for (int32_t r = 0; r < world_size_; ++r) {
      if (shared_->arrived[r]) ranks.push_back(RankId{r});
    }
    return ranks;
  }

  // The ranks that have not arrived; with `among`, only those marked in it.
  std::vector<RankId> Absent(const std::vector<bool>& among) const {
    std::vector<RankId> ranks;
    for (int32_t r = 0; r < world_size_; ++r) {
      if (!shared_->arrived[r] && (among.empty() || among[r])) ranks.push_back(RankId{r});
    }
    return ranks;
  }

  absl::Status Break(absl::Status status) {
    shared_->broken = std::move(status);
    shared_->changed.notify_all();
    return shared_->broken;
  }

  const std::shared_ptr<Shared> shared_;
  const RankId rank_;
  const int32_t world_size_;
};

}  // namespace

std::vector<std::unique_ptr<ControlChannel>> MakeInprocControlChannels(int32_t world_size) {
  auto shared = std::make_shared<Shared>(world_size);
  std::vector<std::unique_ptr<ControlChannel>> channels;
  channels.reserve(world_size);
  for (int32_t r = 0; r < world_size; ++r) {
    channels.push_back(std::make_unique<InprocChannel>(shared, RankId{r}, world_size));
  }
  return channels;
}

}  // namespace eplb
