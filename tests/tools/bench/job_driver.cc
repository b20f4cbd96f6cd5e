#include "tests/tools/bench/job_driver.h"

#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/time/clock.h"
#include <grpcpp/create_channel.h>

#include "base/status_macros.h"
#include "proto/wire/message_json.h"
#include "proto/wire/status.h"

namespace eplb::bench {
namespace {

constexpr absl::Duration kPoll = absl::Milliseconds(5);

grpc::ByteBuffer ReadyFor(const v1::Propose& propose) {
  v1::Up message;
  v1::Prepared* ready = message.mutable_prepared();
  ready->set_version(propose.version());
  ready->set_digest(propose.digest());
  ready->set_plan_hash(propose.digest());  // any 32 bytes that are equal on all ranks
  return ToBytes(message);
}

}  // namespace

JobDriver::JobDriver(Options options)
    : options_(std::move(options)),
      query_(v1::Query::NewStub(
          grpc::CreateChannel(options_.target, grpc::InsecureChannelCredentials()))) {
  fan_out_.ready.assign(static_cast<size_t>(options_.job.world_size), absl::InfinitePast());
  const auto on_written = [this](int) {
    {
      const std::lock_guard lock(mutex_);
      ++num_written_;
    }
    changed_.notify_all();
  };
  fleet_ = std::make_unique<Fleet>(
      FleetOptions{.target = options_.target,
                   .num_sessions = options_.job.world_size,
                   .num_connections = options_.num_connections,
                   .num_threads = options_.num_threads,
                   .frozen = options_.frozen},
      FleetHooks{.on_message = [this](int rank, const grpc::ByteBuffer& b) { OnMessage(rank, b); },
                 .on_written = on_written,
                 .on_end = [this](int rank, const grpc::Status& status) { OnEnd(rank, status); }});
}

absl::Status JobDriver::Start(absl::Duration timeout) {
  const Placement running = Placement::Static(*Topology::Make(options_.job.shape));
  const int world_size = options_.job.world_size;
  for (int rank = 0; rank < world_size; ++rank) {
    fleet_->Send(rank, HelloOf(options_.job, rank, running));
  }
  {
    std::unique_lock lock(mutex_);
    const auto all_in = [&] {
      const bool welcomed = options_.frozen || num_welcomed_ == world_size;
      return (welcomed && num_written_ == world_size) || !refusal_.ok();
    };
    (void)changed_.wait_for(lock, absl::ToChronoMilliseconds(timeout), all_in);
    EPLB_RETURN_IF_ERROR(refusal_);
    if (!all_in()) {
      return absl::DeadlineExceededError(
          absl::StrCat(num_welcomed_, " of ", world_size, " ranks were welcomed"));
    }
  }
  return WaitForStatus("IDLE", timeout,
                       [](const auto& job) { return job.state() == v1::JOB_STATE_IDLE; });
}

absl::Status JobDriver::Ingest(int64_t num_windows, const LoadMatrix& counts,
                               absl::Duration timeout) {
  std::vector<grpc::ByteBuffer> windows;
  for (int64_t i = 0; i < num_windows; ++i) {
    windows.push_back(ReportOf(options_.job, next_window_++, counts));
  }
  const int64_t last_step = next_window_ * options_.job.report_every - 1;
  for (int rank = 0; rank < options_.job.world_size; ++rank) {
    for (const grpc::ByteBuffer& window : windows) fleet_->Send(rank, window);
  }
  return WaitForStatus(absl::StrCat("the sum of the window that ends with step ", last_step),
                       timeout, [last_step](const v1::JobStatus& job) {
                         return static_cast<int64_t>(job.last_window_last_step()) == last_step;
                       });
}

absl::Status JobDriver::Leave(absl::Duration timeout) {
  v1::Up message;
  message.mutable_goodbye()->set_reason("finished");
  const grpc::ByteBuffer bytes = ToBytes(message);
  for (int rank = 0; rank < options_.job.world_size; ++rank) fleet_->Send(rank, bytes);
  if (fleet_->WaitForEnds(timeout)) return absl::OkStatus();
  return absl::DeadlineExceededError(absl::StrCat(fleet_->num_open(), " streams did not end"));
}

void JobDriver::Report(const LoadMatrix& counts, int num_reporters) {
  const grpc::ByteBuffer report = ReportOf(options_.job, next_window_++, counts);
  for (int rank = 0; rank < num_reporters; ++rank) fleet_->Send(rank, report);
}

absl::StatusOr<FanOut> JobDriver::WaitForFanOut(absl::Duration timeout) {
  FanOut fan_out;
  {
    std::unique_lock lock(mutex_);
    (void)changed_.wait_for(lock, absl::ToChronoMilliseconds(timeout),
                            [this] { return num_ready_ == options_.job.world_size; });
    if (num_ready_ < options_.job.world_size) {
      return absl::DeadlineExceededError(
          absl::StrCat(num_ready_, " of ", options_.job.world_size, " ranks got the proposal"));
    }
    fan_out = fan_out_;
    num_ready_ = 0;
  }
  EPLB_RETURN_IF_ERROR(WaitForStatus(
      "VOTING", timeout, [](const auto& job) { return job.state() == v1::JOB_STATE_VOTING; }));
  fan_out.all_counted = absl::Now();
  return fan_out;
}

absl::Status JobDriver::Apply(const FanOut& fan_out, absl::Duration timeout) {
  v1::Up message;
  v1::Applied* applied = message.mutable_applied();
  applied->set_version(static_cast<uint64_t>(fan_out.version));
  applied->set_digest(fan_out.digest);
  applied->set_step(static_cast<uint64_t>(next_window_ * options_.job.report_every));
  const grpc::ByteBuffer bytes = ToBytes(message);
  for (int rank = 0; rank < options_.job.world_size; ++rank) fleet_->Send(rank, bytes);
  return WaitForStatus(absl::StrCat("version ", fan_out.version), timeout,
                       [&fan_out](const v1::JobStatus& job) {
                         return static_cast<int64_t>(job.version()) == fan_out.version &&
                                job.state() == v1::JOB_STATE_IDLE;
                       });
}

absl::StatusOr<v1::JobStatus> JobDriver::Status() const {
  grpc::ClientContext context;
  context.set_deadline(absl::ToChronoTime(absl::Now() + absl::Seconds(20)));
  v1::GetJobRequest request;
  request.set_job(options_.job.name);
  v1::JobStatus job;
  const grpc::Status status = query_->GetJob(&context, request, &job);
  if (!status.ok()) return wire::FromGrpc(status);
  return job;
}

void JobDriver::OnMessage(int rank, const grpc::ByteBuffer& bytes) {
  // Only a proposal is that long.
  constexpr size_t kLongest = 1024;
  if (bytes.Length() > kLongest) return OnPropose(rank, bytes);
  v1::Down message;
  if (!FromBytes(bytes, &message) || !message.has_welcome()) return;
  {
    const std::lock_guard lock(mutex_);
    ++num_welcomed_;
  }
  changed_.notify_all();
}

void JobDriver::OnPropose(int rank, const grpc::ByteBuffer& bytes) {
  grpc::ByteBuffer expected;
  {
    const std::lock_guard lock(mutex_);
    expected = propose_;
  }
  v1::Down message;
  const bool fresh = !expected.Valid() || !SameBytes(expected, bytes);
  if (fresh && !(FromBytes(bytes, &message) && message.has_propose())) return;
  grpc::ByteBuffer answer;
  {
    const std::lock_guard lock(mutex_);
    const v1::Propose& propose = message.propose();
    if (fresh && static_cast<int64_t>(propose.version()) > fan_out_.version) {
      propose_ = bytes;
      answer_ = ReadyFor(propose);
      fan_out_.version = static_cast<int64_t>(propose.version());
      fan_out_.digest = propose.digest();
      fan_out_.message_bytes = bytes.Length();
    }
    answer = answer_;
    fan_out_.ready[static_cast<size_t>(rank)] = absl::Now();
    ++num_ready_;
  }
  fleet_->Send(rank, answer);
  changed_.notify_all();
}

void JobDriver::OnEnd(int rank, const grpc::Status& status) {
  if (status.ok() || status.error_code() == grpc::StatusCode::CANCELLED) return;
  {
    const std::lock_guard lock(mutex_);
    if (refusal_.ok()) {
      refusal_ = absl::Status(static_cast<absl::StatusCode>(status.error_code()),
                              absl::StrCat("rank ", rank, ": ", status.error_message()));
    }
  }
  changed_.notify_all();
}

absl::Status JobDriver::WaitForStatus(const std::string& what, absl::Duration timeout,
                                      const std::function<bool(const v1::JobStatus&)>& done) const {
  const absl::Time deadline = absl::Now() + timeout;
  for (;;) {
    const absl::StatusOr<v1::JobStatus> answer = Status();
    // A daemon whose core is busy answers with the jobs that it knew a moment before.
    if (!answer.ok() && !absl::IsNotFound(answer.status())) return answer.status();
    const v1::JobStatus job = answer.ok() ? *answer : v1::JobStatus();
    if (answer.ok() && done(job)) return absl::OkStatus();
    if (absl::Now() > deadline) {
      return absl::DeadlineExceededError(
          absl::StrCat("job ", options_.job.name, " did not reach ", what, ": it is ",
                       wire::EnumText(job.state()), " at step ", job.step(), ", version ",
                       job.version(), ", its last window ends with step ",
                       job.last_window_last_step(), "; ", job.last_reason()));
    }
    absl::SleepFor(kPoll);
  }
}

}  // namespace eplb::bench
