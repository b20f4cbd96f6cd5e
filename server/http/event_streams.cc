#include "server/http/event_streams.h"

#include <poll.h>
#include <sys/eventfd.h>
#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <utility>

#include "absl/strings/str_cat.h"

#include "base/monotonic_clock.h"
#include "server/http/job_json.h"

namespace eplb {
namespace {

constexpr int32_t kEventsAtOnce = 500;  // of a peer that has missed many
constexpr char kRetry[] = "retry: 2000\n\n";
constexpr char kAlive[] = ": alive\n\n";

// `data` is one line: DumpJson escapes line ends.
std::string MessageOf(std::string_view id, std::string_view event, std::string data) {
  while (!data.empty() && data.back() == '\n') data.pop_back();
  std::string message;
  if (!id.empty()) message += absl::StrCat("id: ", std::string(id), "\n");
  return absl::StrCat(message, "event: ", std::string(event), "\ndata: ", data, "\n\n");
}

}  // namespace

EventStreams::EventStreams(EventStreamSources sources, Limits limits)
    : sources_(std::move(sources)),
      limits_(limits),
      wake_(eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK)) {}

bool EventStreams::Take(Descriptor peer, std::string head, int64_t after) {
  const absl::Time now = MonotonicNow();
  Watcher watcher{.peer = std::move(peer),
                  .waiting = absl::StrCat(head, kRetry),
                  .after = after,
                  .moved = now,
                  .told = now};
  {
    const std::lock_guard lock(mutex_);
    if (stopped_ || full()) return false;
    ++num_watchers_;
    posted_.push_back(std::move(watcher));
  }
  const uint64_t one = 1;
  (void)!write(wake_.get(), &one, sizeof(one));
  return true;
}

void EventStreams::Run() {
  absl::Time look = MonotonicNow();
  while (TakePosted()) {
    const absl::Time now = MonotonicNow();
    if (now >= look && !watchers_.empty()) {
      Gather(now);
      look = now + limits_.period;
    }
    WaitAndSend(watchers_.empty() ? now + absl::Minutes(1) : look);
  }
}

void EventStreams::Stop() {
  {
    const std::lock_guard lock(mutex_);
    stopped_ = true;
  }
  const uint64_t one = 1;
  (void)!write(wake_.get(), &one, sizeof(one));
}

bool EventStreams::TakePosted() {
  const std::lock_guard lock(mutex_);
  watchers_.splice(watchers_.end(), posted_);
  return !stopped_;
}

// read: by `after`, what was read in this turn already: most watchers have seen the same.
void EventStreams::TellEvents(Watcher& watcher, std::map<int64_t, std::vector<StoredEvent>>& read) {
  auto found = read.find(watcher.after);
  if (found == read.end()) {
    // A peer that begins needs the number of the newest event, and not what it was.
    const int32_t limit = watcher.after == 0 ? 1 : kEventsAtOnce;
    absl::StatusOr<std::vector<StoredEvent>> events = sources_.events(watcher.after, limit);
    found =
        read.emplace(watcher.after, std::move(events).value_or(std::vector<StoredEvent>())).first;
  }
  const bool begins = watcher.after == 0;
  for (const StoredEvent& event : found->second) {
    watcher.after = event.sequence;
    if (begins) continue;
    watcher.waiting += MessageOf(absl::StrCat(event.sequence), "event", EventToJson(event));
  }
}

void EventStreams::Gather(absl::Time now) {
  std::map<int64_t, std::vector<StoredEvent>> read;
  for (Watcher& watcher : watchers_) TellEvents(watcher, read);
  std::string all;
  std::string changed;
  std::map<std::string, JobNews> jobs;
  for (const core::JobView& job : sources_.jobs()) {
    JobNews news{.state = std::string(core::JobStateName(job.state)),
                 .step = job.step,
                 .version = job.version,
                 .window = job.last_window_last_step,
                 .connected = job.connected_ranks};
    const std::string message = MessageOf("", "job", JobNewsToJson(job));
    all += message;
    const auto old = known_.find(job.job);
    if (old == known_.end() || old->second != news) changed += message;
    jobs.emplace(job.job, std::move(news));
  }
  for (const auto& [name, news] : known_) {
    if (!jobs.contains(name)) changed += MessageOf("", "job_gone", JobGoneToJson(name));
  }
  known_ = std::move(jobs);
  for (Watcher& watcher : watchers_) {
    watcher.waiting += watcher.knows_jobs ? changed : all;
    watcher.knows_jobs = true;
    if (!watcher.waiting.empty()) {
      watcher.told = now;
    } else if (now - watcher.told >= limits_.alive) {
      watcher.waiting += kAlive;
      watcher.told = now;
    }
  }
}

bool EventStreams::SendWaiting(Watcher& watcher, absl::Time now) const {
  size_t sent = 0;
  while (sent < watcher.waiting.size()) {
    const ssize_t taken = send(watcher.peer.get(), watcher.waiting.data() + sent,
                               watcher.waiting.size() - sent, MSG_DONTWAIT | MSG_NOSIGNAL);
    if (taken > 0) {
      sent += static_cast<size_t>(taken);
    } else if (taken < 0 && errno == EINTR) {
      continue;
    } else {
      if (taken < 0 && errno != EAGAIN) return false;
      break;
    }
  }
  watcher.waiting.erase(0, sent);
  if (sent > 0 || watcher.waiting.empty()) watcher.moved = now;
  return true;
}

namespace {

// Whether the peer is still there. What it sends has no meaning.
bool IsThere(const Descriptor& peer) {
  std::array<char, 512> ignored;
  const ssize_t got = recv(peer.get(), ignored.data(), ignored.size(), MSG_DONTWAIT);
  return got > 0 || (got < 0 && (errno == EAGAIN || errno == EINTR));
}

}  // namespace

void EventStreams::WaitAndSend(absl::Time until) {
  absl::Time now = MonotonicNow();
  for (auto one = watchers_.begin(); one != watchers_.end();) {
    const bool over = !SendWaiting(*one, now);
    const bool slow =
        one->waiting.size() > limits_.max_waiting_bytes || now - one->moved >= limits_.stall;
    if (slow && !over) ++dropped_;
    if (over || slow) --num_watchers_;
    one = over || slow ? watchers_.erase(one) : std::next(one);
  }
  std::vector<pollfd> polled = {{.fd = wake_.get(), .events = POLLIN, .revents = 0}};
  for (const Watcher& watcher : watchers_) {
    const int events = watcher.waiting.empty() ? POLLIN : POLLIN | POLLOUT;
    polled.push_back(
        {.fd = watcher.peer.get(), .events = static_cast<int16_t>(events), .revents = 0});
  }
  const int64_t left = absl::ToInt64Milliseconds(until - now) + 1;
  (void)poll(polled.data(), polled.size(), static_cast<int>(std::max<int64_t>(left, 1)));
  if (polled[0].revents != 0) {
    uint64_t ignored = 0;
    (void)!read(wake_.get(), &ignored, sizeof(ignored));
  }
  auto one = watchers_.begin();
  for (size_t i = 1; i < polled.size(); ++i) {
    const bool there = (polled[i].revents & ~POLLOUT) == 0 || IsThere(one->peer);
    if (!there) --num_watchers_;
    one = there ? std::next(one) : watchers_.erase(one);
  }
}

}  // namespace eplb
