#include "tests/client/fault_points/striker.h"

#include <algorithm>
#include <csignal>
#include <ctime>
#include <utility>
#include <vector>

#include "absl/time/clock.h"

#include "base/monotonic_clock.h"
#include "tests/client/faulty_channels.h"

namespace eplb {
namespace {

constexpr std::byte kNothingYet{0xA5};

Striker* the_striker = nullptr;  // for the handler of a signal

class StrikingTransport final : public ForwardingTransport {
 public:
  StrikingTransport(std::unique_ptr<Transport> inner, Striker& striker)
      : ForwardingTransport(std::move(inner)), striker_(striker) {}

  absl::StatusOr<Ticket> Post(RowMoves moves) override {
    post_id_ = moves.post_id;
    num_moves_ = 0;
    bytes_moved_ = 0;
    std::span<std::byte> first_row;
    if (!moves.receives.empty()) {
      const RowReceive& row = moves.receives.front();
      first_row = staging().subspan(static_cast<size_t>(row.staging_offset),
                                    static_cast<size_t>(row.num_bytes));
    }
    if (striker_.waits_for(Point::kAfterPost, post_id_)) {
      std::fill(first_row.begin(), first_row.end(), kNothingYet);
    }
    striker_.At(Point::kBeforePost, post_id_);
    const Fault& fault = striker_.fault();
    if (post_id_ == fault.post_id && fault.rows_deadline > absl::ZeroDuration()) {
      moves.deadline = MonotonicNow() + fault.rows_deadline;
    }
    absl::StatusOr<Ticket> ticket = ForwardingTransport::Post(std::move(moves));
    if (!ticket.ok()) striker_.RowsAreOver(post_id_);
    striker_.AfterPost(post_id_, first_row);
    return ticket;
  }

  absl::StatusOr<Progress> Poll(Ticket ticket, absl::Duration max_wait) override {
    // In small steps, so that a fault can strike between two of them.
    const bool step = striker_.waits_for(Point::kDuringRows, post_id_);
    absl::StatusOr<Progress> progress =
        ForwardingTransport::Poll(ticket, step ? absl::ZeroDuration() : max_wait);
    if (!progress.ok() || progress->done) striker_.RowsAreOver(post_id_);
    if (!progress.ok()) return progress;
    const int64_t moved = progress->sent_bytes + progress->received_bytes;
    if (!progress->done && moved > std::exchange(bytes_moved_, moved)) {
      striker_.At(Point::kDuringRows, post_id_, num_moves_++);
    }
    if (progress->done) striker_.At(Point::kAfterStage, post_id_);
    return progress;
  }

 private:
  Striker& striker_;
  uint64_t post_id_ = 0;
  int64_t bytes_moved_ = 0;
  int32_t num_moves_ = 0;
};

class StrikingControl final : public ForwardingControl {
 public:
  StrikingControl(std::unique_ptr<ControlChannel> inner, Striker& striker)
      : ForwardingControl(std::move(inner)), striker_(striker) {}

  absl::StatusOr<std::vector<int64_t>> AllReduceMin(std::span<const int64_t> values,
                                                    absl::Duration timeout) override {
    constexpr size_t kFirstVote = 7;
    const bool first = values.size() == kFirstVote;
    const bool ready = values[0] > 0;
    if (first && ready) striker_.At(Point::kBeforeVote, num_posts_ + 1);
    const Fault& fault = striker_.fault();
    if (fault.vote_deadline > absl::ZeroDuration() &&
        fault.IsMissedVote(first, ready, num_posts_)) {
      timeout = fault.vote_deadline;
    }
    absl::StatusOr<std::vector<int64_t>> minimum = ForwardingControl::AllReduceMin(values, timeout);
    if (!minimum.ok()) return minimum;
    if (first) {
      const bool agreed = ready && (*minimum)[0] == values[0] && (*minimum)[1] == values[1];
      num_posts_ += agreed ? 1 : 0;
    } else if ((*minimum)[0] == 1) {
      striker_.At(Point::kAfterVote, num_posts_);
      striker_.OpenForCommit(num_posts_);
    }
    return minimum;
  }

 private:
  Striker& striker_;
  uint64_t num_posts_ = 0;
};

void Sleep(absl::Duration duration) {  // also in the handler of a signal
  timespec left = absl::ToTimespec(duration);
  while (nanosleep(&left, &left) != 0) {
  }
}

}  // namespace

Striker::Striker(const Fault& fault, bool is_victim, Journal& journal, GuardedMemory& memory)
    : fault_(fault), is_victim_(is_victim), journal_(journal), memory_(memory) {
  the_striker = this;
}

Striker::~Striker() { the_striker = nullptr; }

bool Striker::waits_for(Point point, uint64_t post_id) const {
  return is_victim_ && !journal_.struck && fault_.strike != Strike::kNone &&
         fault_.point == point && fault_.post_id == post_id;
}

void Striker::At(Point point, uint64_t post_id, int32_t nth) {
  if (waits_for(point, post_id) && nth == fault_.nth) StrikeNow();
}

void Striker::OpenForCommit(uint64_t post_id) {
  memory_.OpenForCommit(waits_for(Point::kMidCommit, post_id) ? &Striker::StrikeNow : nullptr);
}

void Striker::AfterPost(uint64_t post_id, std::span<std::byte> first_row) {
  if (!waits_for(Point::kAfterPost, post_id)) return;
  if (fault_.strike != Strike::kCorrupt) return StrikeNow();
  // A peer's process writes: every look has to read the memory.
  const volatile std::byte* const last = first_row.data() + first_row.size() - 1;
  const absl::Time deadline = absl::Now() + absl::Seconds(5);
  while (*last == kNothingYet && absl::Now() < deadline) absl::SleepFor(absl::Milliseconds(1));
  absl::SleepFor(absl::Milliseconds(5));
  first_row.front() ^= std::byte{1};
  journal_.struck = true;
}

void Striker::StrikeNow() {
  Striker& self = *the_striker;
  self.journal_.struck = true;
  switch (self.fault_.strike) {
    case Strike::kKill:
      (void)raise(SIGKILL);
      break;
    case Strike::kStop:
      (void)raise(SIGSTOP);
      break;
    case Strike::kDelay:
      Sleep(self.fault_.lasts);
      break;
    case Strike::kCorrupt:
    case Strike::kNone:
      break;
  }
}

std::unique_ptr<Transport> MakeStrikingTransport(std::unique_ptr<Transport> inner,
                                                 Striker& striker) {
  return std::make_unique<StrikingTransport>(std::move(inner), striker);
}

std::unique_ptr<ControlChannel> MakeStrikingControl(std::unique_ptr<ControlChannel> inner,
                                                    Striker& striker) {
  return std::make_unique<StrikingControl>(std::move(inner), striker);
}

}  // namespace eplb
