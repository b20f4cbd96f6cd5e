#include "server/http/event_streams.h"

#include <gtest/gtest.h>
#include <netinet/in.h>
#include <sys/socket.h>
#include <sys/time.h>

#include <array>
#include <atomic>
#include <cerrno>
#include <functional>
#include <limits>
#include <memory>
#include <mutex>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "absl/strings/match.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "absl/strings/string_view.h"
#include "absl/time/clock.h"

#include "base/monotonic_clock.h"

#include <nlohmann/json.hpp>

namespace eplb {
namespace {

using Json = nlohmann::json;

constexpr absl::Duration kPatience = absl::Seconds(20);
constexpr char kHead[] = "HEAD\r\n\r\n";

// One message of the stream.
struct Message {
  int64_t id = 0;
  std::string event;
  std::string text;  // JSON

  Json data() const { return Json::parse(text); }
};

// A watcher's end. Every wait is bounded.
class Peer {
 public:
  // Also the end that the streams get.
  explicit Peer(Descriptor& other, int family = AF_UNIX) {
    if (family == AF_INET) {
      ConnectOverTcp(other);
    } else {
      std::array<int, 2> ends{};
      EXPECT_EQ(socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, ends.data()), 0);
      other = Descriptor(ends[0]);
      end_ = Descriptor(ends[1]);
    }
    const timeval patience{.tv_sec = 20, .tv_usec = 0};
    (void)setsockopt(end_.get(), SOL_SOCKET, SO_RCVTIMEO, &patience, sizeof(patience));
  }

  // The next message; comments and the head are left out. Fails the test when none comes.
  Message Next() {
    const absl::Time deadline = MonotonicNow() + kPatience;
    while (MonotonicNow() < deadline) {
      const std::string block = NextBlock();
      if (block.empty()) return {};
      if (absl::StartsWith(block, "event: ") || absl::StartsWith(block, "id: ")) {
        return Parse(block);
      }
    }
    ADD_FAILURE() << "only comments came";
    return {};
  }
  // The next message of this kind.
  Message Next(const std::string& event) {
    const absl::Time deadline = MonotonicNow() + kPatience;
    while (MonotonicNow() < deadline) {
      Message message = Next();
      if (message.event == event || message.event.empty()) return message;
    }
    ADD_FAILURE() << "no message " << event;
    return {};
  }
  // Returns the text before the next empty line; "" at the end of the stream.
  std::string NextBlock() {
    for (;;) {
      const size_t end = text_.find("\n\n");
      if (end != std::string::npos) {
        std::string block = text_.substr(0, end);
        text_.erase(0, end + 2);
        if (absl::StartsWith(block, kHead)) block.erase(0, sizeof(kHead) - 1);
        return block;
      }
      if (!Read()) {
        ADD_FAILURE() << "the stream ended";
        return "";
      }
    }
  }
  // Reads all until the other end closes; false when it does not.
  bool ReadToTheEnd() {
    const absl::Time deadline = MonotonicNow() + kPatience;
    while (MonotonicNow() < deadline && Read()) {
    }
    return closed_;
  }
  void Send(const std::string& bytes) {
    (void)send(end_.get(), bytes.data(), bytes.size(), MSG_NOSIGNAL);
  }
  void Close() { end_ = Descriptor(); }

 private:
  // With little room for what it does not read.
  void ConnectOverTcp(Descriptor& other) {
    const Descriptor listener(socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0));
    sockaddr_in address{.sin_family = AF_INET, .sin_port = 0, .sin_addr = {htonl(INADDR_LOOPBACK)}};
    socklen_t size = sizeof(address);
    auto* const any = reinterpret_cast<sockaddr*>(&address);
    EXPECT_EQ(bind(listener.get(), any, size), 0);
    EXPECT_EQ(listen(listener.get(), 1), 0);
    EXPECT_EQ(getsockname(listener.get(), any, &size), 0);
    end_ = Descriptor(socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0));
    const int room = 4096;
    EXPECT_EQ(setsockopt(end_.get(), SOL_SOCKET, SO_RCVBUF, &room, sizeof(room)), 0);
    EXPECT_EQ(connect(end_.get(), any, size), 0);
    other = Descriptor(accept4(listener.get(), nullptr, nullptr, SOCK_CLOEXEC));
  }
  bool Read() {
    std::array<char, 4096> bytes{};
    const ssize_t got = recv(end_.get(), bytes.data(), bytes.size(), 0);
    closed_ = got == 0 || (got < 0 && errno == ECONNRESET);
    if (got > 0) text_.append(bytes.data(), static_cast<size_t>(got));
    return got > 0;
  }
  // Fails the test for a line that is no field, or data that is no JSON.
  static Message Parse(const std::string& block) {
    Message message;
    for (const absl::string_view line : absl::StrSplit(block, '\n')) {
      const std::pair<std::string, std::string> field =
          absl::StrSplit(line, absl::MaxSplits(": ", 1));
      if (field.first == "id") {
        EXPECT_TRUE(absl::SimpleAtoi(field.second, &message.id)) << line;
      } else if (field.first == "event") {
        message.event = field.second;
      } else {
        EXPECT_EQ(field.first, "data");
        EXPECT_EQ(message.text, "") << "two lines of data";
        EXPECT_TRUE(Json::accept(field.second)) << field.second;
        message.text = field.second;
      }
    }
    return message;
  }

  Descriptor end_;
  std::string text_;
  bool closed_ = false;
};

class EventStreamsTest : public ::testing::Test {
 protected:
  ~EventStreamsTest() override {
    if (streams_ != nullptr) streams_->Stop();
    if (thread_.joinable()) thread_.join();
  }
  void Start(EventStreams::Limits limits = {}) {
    limits.period = absl::Milliseconds(5);
    streams_ = std::make_unique<EventStreams>(
        EventStreamSources{.events = [this](std::optional<int64_t> after, int32_t limit)
                               -> absl::StatusOr<std::vector<StoredEvent>> {
                             if (fail_reads_) return absl::UnavailableError("the disk is gone");
                             return store_->ReadEventsOfAll(after, limit);
                           },
                           .jobs =
                               [this] {
                                 const std::lock_guard lock(mutex_);
                                 ++looks_;
                                 return jobs_;
                               }},
        limits);
    thread_ = std::thread([this] { streams_->Run(); });
  }
  Peer Watch(std::optional<int64_t> after = std::nullopt) {
    Descriptor other;
    Peer peer(other);
    EXPECT_TRUE(streams_->Take(other, kHead, after));
    return peer;
  }
  // A watcher that has the head, so that it is told what happens now.
  Peer WatchFromNow() {
    Peer peer = Watch();
    EXPECT_EQ(peer.Next().event, "jobs");
    return peer;
  }
  void Append(const std::string& job, const std::string& reason = "why") {
    EXPECT_TRUE(
        store_->AppendEvent(absl::UnixEpoch(), {.job = job, .name = "kept", .reason = reason})
            .ok());
  }
  void SetJobs(const std::vector<std::pair<std::string, int64_t>>& jobs) {
    const std::lock_guard lock(mutex_);
    jobs_.clear();
    for (const auto& [name, step] : jobs) {
      jobs_.push_back({.job = name, .state = core::JobState::kIdle, .step = step});
    }
  }
  // Two more looks at the sources have begun: what was there before was sent.
  void WaitForLooks() {
    const int64_t until = looks_ + 2;
    WaitFor([&] { return looks_ >= until; }, "the sources are looked at");
  }
  static void WaitFor(const std::function<bool()>& condition, const std::string& what) {
    const absl::Time deadline = MonotonicNow() + kPatience;
    while (!condition() && MonotonicNow() < deadline) absl::SleepFor(absl::Milliseconds(1));
    EXPECT_TRUE(condition()) << "not within 20 s: " << what;
  }
  void WaitForWatchers(size_t number) {
    WaitFor([&] { return streams_->num_watchers() == number; }, absl::StrCat(number, " watchers"));
  }

  std::unique_ptr<Store> store_ = MakeMemoryStore().value();
  std::atomic<bool> fail_reads_ = false;
  std::atomic<int64_t> looks_ = 0;
  std::unique_ptr<EventStreams> streams_;

 private:
  std::mutex mutex_;
  std::vector<core::JobView> jobs_;
  std::thread thread_;
};

TEST_F(EventStreamsTest, AWatcherIsToldAllJobsFirst) {
  SetJobs({{"a", 7}, {"b", 0}});
  Append("a");
  Start();
  Peer peer = Watch();
  EXPECT_EQ(peer.NextBlock(), "retry: 2000");
  const Message jobs = peer.Next();
  EXPECT_EQ(jobs.event, "jobs");
  EXPECT_EQ(jobs.data(), Json::parse(R"({"jobs":["a","b"]})"));
  const Message first = peer.Next();
  EXPECT_EQ(first.event, "job");
  EXPECT_EQ(first.id, 0);
  EXPECT_EQ(first.data().at("job"), "a");
  EXPECT_EQ(first.data().at("step"), 7);
  EXPECT_EQ(first.data().at("state"), "IDLE");
  EXPECT_EQ(peer.Next().data().at("job"), "b");
  // An earlier event is not sent.
  Append("b", "next");
  EXPECT_EQ(peer.Next().data().at("reason"), "next");
}

TEST_F(EventStreamsTest, TheVeryFirstEventOfAStoreIsTold) {
  Start();
  Peer peer = WatchFromNow();
  WaitForLooks();
  Append("a", "first");
  Append("a", "second");
  const Message first = peer.Next();
  EXPECT_EQ(first.id, 1);
  EXPECT_EQ(first.data().at("sequence"), 1);
  EXPECT_EQ(first.data().at("reason"), "first");
  EXPECT_EQ(peer.Next().id, 2);
}

TEST_F(EventStreamsTest, ThoseThatComeBackMissNoEventAndGetEachOnceInOrder) {
  constexpr int64_t kEvents = 1234;  // more than two readings of 500
  for (int64_t i = 1; i <= kEvents; ++i) Append(i % 3 == 0 ? "a" : i % 3 == 1 ? "b" : "");
  Start();
  for (const int64_t after : {int64_t{0}, int64_t{10}, int64_t{733}, kEvents - 1}) {
    Peer peer = Watch(after);
    for (int64_t id = after + 1; id <= kEvents; ++id) ASSERT_EQ(peer.Next("event").id, id);
  }
  Peer peer = Watch(kEvents);
  EXPECT_EQ(peer.Next().event, "jobs");
  Append("a");
  EXPECT_EQ(peer.Next("event").id, kEvents + 1);
}

TEST_F(EventStreamsTest, ANumberOfAnotherStoreBeginsWithAllThatIsStored) {
  Append("a");
  Append("a");
  Start();
  for (const int64_t after : {int64_t{3}, std::numeric_limits<int64_t>::max()}) {
    Peer peer = Watch(after);
    EXPECT_EQ(peer.Next("event").id, 1) << after;
    EXPECT_EQ(peer.Next("event").id, 2) << after;
  }
}

TEST_F(EventStreamsTest, OnlyTheJobsThatChangedAreTold) {
  SetJobs({{"a", 1}, {"b", 1}});
  Start();
  Peer peer = WatchFromNow();
  (void)peer.Next("job");
  (void)peer.Next("job");
  WaitForLooks();
  SetJobs({{"a", 1}, {"b", 2}});
  const Message changed = peer.Next();
  EXPECT_EQ(changed.data().at("job"), "b");
  EXPECT_EQ(changed.data().at("step"), 2);
  SetJobs({{"b", 2}});
  const Message gone = peer.Next();
  EXPECT_EQ(gone.event, "job_gone");
  EXPECT_EQ(gone.data(), Json::parse(R"({"job":"a"})"));
  Peer later = Watch();
  EXPECT_EQ(later.Next().data(), Json::parse(R"({"jobs":["b"]})"));
}

TEST_F(EventStreamsTest, WhileTheStoreFailsNothingIsLostAndNothingIsDoubled) {
  Append("a");
  fail_reads_ = true;
  Start();
  Peer back = Watch(0);
  Peer from_now = Watch();
  EXPECT_EQ(back.Next().event, "jobs") << "of the jobs it is told all the same";
  EXPECT_EQ(from_now.Next().event, "jobs");
  Append("a");
  WaitForLooks();
  fail_reads_ = false;
  EXPECT_EQ(back.Next("event").id, 1);
  EXPECT_EQ(back.Next("event").id, 2);
  WaitForLooks();
  fail_reads_ = true;
  Append("a");
  WaitForLooks();
  fail_reads_ = false;
  EXPECT_EQ(back.Next("event").id, 3);
  EXPECT_EQ(from_now.Next("event").id, 3);
  EXPECT_EQ(streams_->num_watchers(), 2);
}

// A stranger may name jobs and give reasons: no text of it may begin a line or a message.
TEST_F(EventStreamsTest, NoTextEndsALineOfAMessage) {
  const std::string hostile =
      "x\n\nid: 9\nevent: job_gone\ndata: {}\n\n\r\rdata: 1\r\n\xe2\x80\xa8\xff";
  SetJobs({{hostile, 1}});
  Start();
  Peer peer = WatchFromNow();
  EXPECT_EQ(peer.Next().event, "job");
  for (int i = 0; i < 3; ++i) Append(hostile, absl::StrCat(i, hostile));
  for (int i = 0; i < 3; ++i) {
    const Message message = peer.Next();
    EXPECT_EQ(message.event, "event");
    EXPECT_EQ(message.id, i + 1);
    EXPECT_TRUE(absl::StartsWith(message.data().at("reason").get<std::string>(),
                                 absl::StrCat(i, "x  id: 9 ")));
  }
  SetJobs({});
  EXPECT_EQ(peer.Next().event, "job_gone");
}

TEST_F(EventStreamsTest, AQuietStreamIsKeptAliveByComments) {
  Start({.alive = absl::Milliseconds(20)});
  Peer peer = Watch();
  EXPECT_EQ(peer.NextBlock(), "retry: 2000");
  EXPECT_EQ(peer.NextBlock(), "event: jobs\ndata: {\"jobs\":[]}");
  EXPECT_EQ(peer.NextBlock(), "event: alive\ndata: {}");
  EXPECT_EQ(peer.NextBlock(), "event: alive\ndata: {}");
}

TEST_F(EventStreamsTest, OneWatcherTooManyIsRefusedAndKeepsItsConnection) {
  Start({.max_watchers = 2});
  Peer first = WatchFromNow();
  Peer second = WatchFromNow();
  EXPECT_TRUE(streams_->full());
  Descriptor other;
  const Peer third(other);
  EXPECT_FALSE(streams_->Take(other, kHead, std::nullopt));
  EXPECT_GE(other.get(), 0) << "the caller still answers it";
  first.Close();
  WaitForWatchers(1);
  EXPECT_TRUE(streams_->Take(other, kHead, std::nullopt));
  EXPECT_EQ(streams_->dropped(), 0);
}

TEST_F(EventStreamsTest, ManyPeersThatComeAndGoLeaveNone) {
  Start({.max_watchers = 16});
  std::atomic<int> taken = 0;
  std::vector<std::thread> threads;
  threads.reserve(8);
  for (int i = 0; i < 8; ++i) {
    threads.emplace_back([this, &taken] {
      for (int j = 0; j < 20; ++j) {
        Descriptor other;
        const Peer peer(other);
        if (streams_->Take(other, kHead, std::nullopt)) ++taken;
        EXPECT_LE(streams_->num_watchers(), 16);
      }
    });
  }
  for (std::thread& thread : threads) thread.join();
  WaitForWatchers(0);
  EXPECT_GE(taken, 16);
  EXPECT_EQ(streams_->dropped(), 0);
}

TEST_F(EventStreamsTest, APeerThatTakesNothingIsDroppedAndOthersAreServed) {
  Start({.stall = absl::Milliseconds(200)});
  Peer silent = WatchFromNow();
  Peer reader = WatchFromNow();
  for (int i = 1; i <= 600; ++i) {  // 600 KB, above what the kernel keeps for it
    Append("a", std::string(1000, 'x'));
    ASSERT_EQ(reader.Next().id, i);
  }
  WaitForWatchers(1);
  EXPECT_EQ(streams_->dropped(), 1);
  Append("a");
  EXPECT_EQ(reader.Next().id, 601);
  EXPECT_TRUE(silent.ReadToTheEnd());
}

// Its bytes still find room in the socket when the kernel ends the connection, because it took none
// of them.
TEST_F(EventStreamsTest, EveryPeerOverTcpThatTakesNothingIsCounted) {
  Start({.stall = absl::Milliseconds(500)});
  std::vector<Peer> silent;
  for (int i = 0; i < 8; ++i) {
    Descriptor other;
    silent.emplace_back(other, AF_INET);
    ASSERT_TRUE(streams_->Take(other, kHead, 0));
  }
  const absl::Time deadline = MonotonicNow() + kPatience;
  while (streams_->num_watchers() > 0 && MonotonicNow() < deadline) {
    Append("a", std::string(200, 'x'));
    absl::SleepFor(absl::Milliseconds(20));
  }
  EXPECT_EQ(streams_->num_watchers(), 0);
  EXPECT_EQ(streams_->dropped(), 8);
}

TEST_F(EventStreamsTest, EventsOfAPeerThatReadsSlowlyWaitInTheStore) {
  constexpr int64_t kEvents = 1500;  // 3 MB, above its bound
  for (int64_t i = 1; i <= kEvents; ++i) Append("a", std::string(2000, 'x'));
  Start({.max_waiting_bytes = size_t{2} << 20});
  Peer peer = Watch(0);
  WaitForLooks();
  for (int64_t id = 1; id <= kEvents; ++id) {
    ASSERT_EQ(peer.Next("event").id, id);
    if (id % 200 == 0) WaitForLooks();
  }
  EXPECT_EQ(streams_->dropped(), 0);
}

TEST_F(EventStreamsTest, APeerForWhomTooMuchWaitsIsDropped) {
  SetJobs({{"a", 0}});
  Start({.max_waiting_bytes = 4096});
  Peer silent = Watch();
  for (int64_t step = 1; streams_->dropped() == 0 && step < 100'000; ++step) {
    SetJobs({{"a", step}});
    const int64_t before = looks_;
    WaitFor([&] { return looks_ > before || streams_->dropped() > 0; }, "a look");
  }
  EXPECT_EQ(streams_->dropped(), 1);
  EXPECT_EQ(streams_->num_watchers(), 0);
  EXPECT_TRUE(silent.ReadToTheEnd());
}

// Otherwise a daemon with many jobs would drop each of its watchers at once.
TEST_F(EventStreamsTest, TheJobsOfALargeDaemonAreNotTooMuch) {
  std::vector<std::pair<std::string, int64_t>> jobs;
  for (int64_t i = 0; i < 5000; ++i) jobs.emplace_back(absl::StrCat("job-", i), i);
  SetJobs(jobs);
  Start({.max_waiting_bytes = 4096});
  Peer peer = Watch();
  EXPECT_EQ(peer.Next().data().at("jobs").size(), 5000);
  for (int64_t i = 0; i < 5000; ++i) ASSERT_EQ(peer.Next().data().at("step"), i);
  EXPECT_EQ(streams_->dropped(), 0);
}

TEST_F(EventStreamsTest, APeerThatGoesOnSendingIsDropped) {
  Start({.max_heard_bytes = 1000});
  Peer peer = WatchFromNow();
  peer.Send("a few bytes mean nothing");
  Append("a");
  EXPECT_EQ(peer.Next().id, 1);
  EXPECT_EQ(streams_->num_watchers(), 1);
  peer.Send(std::string(2000, 'x'));
  WaitForWatchers(0);
  EXPECT_EQ(streams_->dropped(), 0) << "it took all its bytes";
  EXPECT_TRUE(peer.ReadToTheEnd());
}

TEST_F(EventStreamsTest, StopEndsTheStreamsOfThoseThatWatch) {
  Start();
  Peer peer = WatchFromNow();
  streams_->Stop();
  Descriptor other;
  const Peer late(other);
  EXPECT_FALSE(streams_->Take(other, kHead, std::nullopt));
  EXPECT_GE(other.get(), 0);
}

TEST_F(EventStreamsTest, WithoutWatchersNothingIsAsked) {
  Start();
  { Peer peer = WatchFromNow(); }
  WaitForWatchers(0);
  const int64_t before = looks_;
  absl::SleepFor(absl::Milliseconds(50));  // ten periods
  EXPECT_LE(looks_, before + 1);
}

}  // namespace
}  // namespace eplb
