// One poll loop that dials peers, answers others, and gives up at the deadline.
#include "client/rows/control/meeting.h"

#include <algorithm>
#include <deque>
#include <optional>
#include <set>
#include <utility>

#include "absl/strings/str_cat.h"

#include "base/errors.h"
#include "base/monotonic_clock.h"
#include "base/status_macros.h"
#include "base/text.h"

namespace eplb {
namespace {

constexpr absl::Duration kRetryPause = absl::Milliseconds(20);
constexpr absl::Duration kHandshakeTimeout = absl::Seconds(5);  // for one connection
constexpr size_t kSpareConnections = 64;
constexpr size_t kMaxNamedRanks = 16;

class Host {
 public:
  explicit Host(const MeetOptions& options) : options_(options) {
    for (const MeetOptions::Dial& dial : options.dial) dials_.emplace_back().target = &dial;
    expected_.insert(options.expect.begin(), options.expect.end());
  }

  absl::StatusOr<Meeting> Run(std::string_view what) {
    while (!Complete()) {
      const absl::Time now = MonotonicNow();
      if (now >= options_.deadline) return Missing(what);
      StartDials(now);
      DropSilent(now);
      EPLB_RETURN_IF_ERROR(WaitAndServe(now));
    }
    return std::move(meeting_);
  }

 private:
  struct Dialling {
    const MeetOptions::Dial* target = nullptr;
    size_t attempt = 0;
    absl::Time next_try = absl::InfinitePast();
    absl::Time give_up;  // end of the running attempt
    Fd fd;
    bool connected = false;
    std::optional<Handshake> handshake;
    std::string first_miss;
    bool done = false;

    const std::string& address() const {
      return target->addresses[attempt % target->addresses.size()];
    }
  };
  struct Answering {
    Fd fd;
    Handshake handshake;
    absl::Time give_up;
    std::string address;
    bool over = false;
  };

  bool Complete() const {
    return expected_.empty() &&
           std::ranges::all_of(dials_, [](const Dialling& d) { return d.done; });
  }

  absl::Status Missing(std::string_view what) const {
    std::vector<RankId> missing(expected_.begin(), expected_.end());
    std::string why;
    std::string loopback;
    for (const Dialling& dial : dials_) {
      if (dial.done) continue;
      missing.push_back(dial.target->rank);
      if (why.empty() && !dial.first_miss.empty()) why = absl::StrCat(" (", dial.first_miss, ")");
      if (IsLoopbackAddress(dial.address())) loopback = dial.address();
    }
    for (const Listener* listener : options_.listeners) {
      if (!expected_.empty() && IsLoopbackAddress(listener->address)) loopback = listener->address;
    }
    if (!loopback.empty()) {
      absl::StrAppend(&why, "; no other host or container reaches ", loopback,
                      ", see the option bind_address");
    }
    return DeadlineExceeded(absl::string_view(what.data(), what.size()), ": ",
                            NameRanks(std::move(missing)), " did not connect before the deadline",
                            why);
  }

  void StartDials(absl::Time now) {
    for (Dialling& dial : dials_) {
      if (dial.done || dial.fd.valid() || now < dial.next_try) continue;
      absl::StatusOr<Fd> fd = StartConnect(dial.address());
      if (!fd.ok()) {
        Fail(dial, now, fd.status());
        continue;
      }
      dial.fd = *std::move(fd);
      dial.connected = false;
      dial.give_up = options_.deadline;  // the address is the peer's own, so it will answer
      dial.handshake = Handshake::Dial(options_.handshake, dial.target->rank);
    }
  }

  void Fail(Dialling& dial, absl::Time now, const absl::Status& why) {
    if (dial.attempt == 0) {
      dial.first_miss = absl::StrCat(dial.address(), ": ", why.message());
    }
    dial.fd.Reset();
    dial.handshake.reset();
    ++dial.attempt;
    // The next address follows at once, and a pause after the last one.
    const bool again = dial.attempt % dial.target->addresses.size() == 0;
    dial.next_try = again ? now + kRetryPause : now;
  }

  void DropSilent(absl::Time now) {
    for (Dialling& dial : dials_) {
      if (dial.fd.valid() && now >= dial.give_up) {
        Fail(dial, now, DeadlineExceeded("no answer to the handshake"));
      }
    }
    for (Answering& answer : answering_) {
      if (now >= answer.give_up) Drop(answer);
    }
    std::erase_if(answering_, [](const Answering& a) { return a.over; });
  }

  void Drop(Answering& answer) {
    answer.over = true;
    ++meeting_.strangers;
  }

  // Waits until a socket is ready or the next deadline, then serves the ready sockets.
  absl::Status WaitAndServe(absl::Time now) {
    std::vector<pollfd> polled;
    absl::Time until = options_.deadline;
    for (const Listener* listener : options_.listeners) {
      polled.push_back({.fd = listener->fd.get(), .events = POLLIN, .revents = 0});
    }
    for (const Dialling& dial : dials_) {
      const bool writes = dial.fd.valid() && (!dial.connected || dial.handshake->wants_write());
      polled.push_back({.fd = dial.fd.get(),  // -1 is skipped by poll()
                        .events = static_cast<int16_t>(writes ? POLLOUT : POLLIN),
                        .revents = 0});
      if (!dial.done) until = std::min(until, dial.fd.valid() ? dial.give_up : dial.next_try);
    }
    for (const Answering& answer : answering_) {
      polled.push_back(
          {.fd = answer.fd.get(),
           .events = static_cast<int16_t>(answer.handshake.wants_write() ? POLLOUT : POLLIN),
           .revents = 0});
      until = std::min(until, answer.give_up);
    }
    EPLB_ASSIGN_OR_RETURN(const int ready, PollUntil(polled, std::max(until, now)));
    if (ready == 0) return absl::OkStatus();

    size_t at = options_.listeners.size();
    for (Dialling& dial : dials_) {
      if (polled[at++].revents != 0) Serve(dial);
    }
    for (Answering& answer : answering_) {
      if (polled[at++].revents != 0) Serve(answer);
    }
    std::erase_if(answering_, [](const Answering& a) { return a.over; });
    for (size_t i = 0; i < options_.listeners.size(); ++i) {
      if (polled[i].revents != 0) EPLB_RETURN_IF_ERROR(AcceptFrom(*options_.listeners[i]));
    }
    return absl::OkStatus();
  }

  void Serve(Dialling& dial) {
    if (!dial.connected) {
      const absl::Status outcome = FinishConnect(dial.fd.get());
      if (!outcome.ok()) return Fail(dial, MonotonicNow(), outcome);
      dial.connected = true;
    }
    const absl::StatusOr<bool> step = dial.handshake->Step(dial.fd.get());
    if (!step.ok()) return Fail(dial, MonotonicNow(), step.status());
    if (!*step) return;
    if (dial.address() == dial.target->addresses.front()) dial.first_miss.clear();
    meeting_.peers[dial.target->rank] = {.fd = std::move(dial.fd),
                                         .address = dial.address(),
                                         .first_miss = std::move(dial.first_miss)};
    dial.done = true;
  }

  void Serve(Answering& answer) {
    const absl::StatusOr<bool> step = answer.handshake.Step(answer.fd.get());
    if (!step.ok()) return Drop(answer);
    if (!*step) return;
    const RankId peer = answer.handshake.peer();
    if (!expected_.contains(peer) || !Handshake::Admit(answer.fd.get()).ok()) return Drop(answer);
    expected_.erase(peer);
    meeting_.peers[peer] = {.fd = std::move(answer.fd), .address = std::move(answer.address)};
    answer.over = true;
  }

  absl::Status AcceptFrom(const Listener& listener) {
    EPLB_ASSIGN_OR_RETURN(Fd fd, Accept(listener.fd.get()));
    if (!fd.valid()) return absl::OkStatus();
    if (answering_.size() >= options_.expect.size() + kSpareConnections) {
      answering_.pop_front();
      ++meeting_.strangers;
    }
    answering_.push_back({.fd = std::move(fd),
                          .handshake = Handshake::Answer(options_.handshake),
                          .give_up = MonotonicNow() + kHandshakeTimeout,
                          .address = listener.address});
    return absl::OkStatus();
  }

  const MeetOptions& options_;
  std::vector<Dialling> dials_;
  std::deque<Answering> answering_;
  std::set<RankId> expected_;
  Meeting meeting_;
};

}  // namespace

absl::StatusOr<Meeting> MeetPeers(std::string_view what, const MeetOptions& options) {
  if (options.handshake.secret.empty()) {
    return InvalidInput(absl::string_view(what.data(), what.size()),
                        ": the secret is empty; ranks could not authenticate each other");
  }
  return Host(options).Run(what);
}

absl::Status CheckRank(std::string_view what, RankId rank, int32_t world_size) {
  if (rank.value >= 0 && rank.value < world_size) return absl::OkStatus();
  return InvalidInput(std::string(what), ": rank ", rank.value, " is not in 0..", world_size - 1);
}

std::string NameRanks(std::vector<RankId> ranks) {
  std::ranges::sort(ranks);
  std::vector<int32_t> numbers;
  numbers.reserve(ranks.size());
  for (const RankId rank : ranks) numbers.push_back(rank.value);
  return ListRanks(numbers, kMaxNamedRanks);
}

}  // namespace eplb
