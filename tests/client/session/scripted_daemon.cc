#include "tests/client/session/scripted_daemon.h"

#include <gtest/gtest.h>

#include <chrono>
#include <condition_variable>
#include <map>
#include <mutex>

#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include <grpcpp/security/server_credentials.h>
#include <grpcpp/server.h>
#include <grpcpp/server_builder.h>

#include "proto/wire/convert.h"
#include "proto/wire/status.h"

#include "eplb/v1/query.grpc.pb.h"
#include "eplb/v1/session.grpc.pb.h"

namespace eplb {
namespace {

using Stream = grpc::ServerReaderWriter<v1::Down, v1::Up>;

}  // namespace

struct ScriptedDaemon::Impl final : v1::Balancer::Service, v1::Query::Service {
  explicit Impl(const Options& given) : options(given) {
    grpc::ServerBuilder builder;
    builder.AddListeningPort(absl::StrCat("127.0.0.1:", options.port),
                             grpc::InsecureServerCredentials(), &port);
    builder.RegisterService(static_cast<v1::Balancer::Service*>(this));
    builder.RegisterService(static_cast<v1::Query::Service*>(this));
    server = builder.BuildAndStart();
  }

  grpc::Status Session(grpc::ServerContext* /*context*/, Stream* stream) override {
    v1::Up up;
    if (!stream->Read(&up)) return grpc::Status::OK;
    const absl::StatusOr<wire::UpMessage> first = wire::FromProto(up);
    if (!first.ok()) return wire::ToGrpc(first.status());
    const int32_t rank = std::get<wire::Hello>(*first).rank;
    if (!options.refusal.ok()) {
      Note(rank, *first);
      return wire::ToGrpc(options.refusal);
    }
    v1::Down welcome;
    wire::ToProto(wire::DownMessage(wire::Welcome{options.term, "scripted", options.waits}),
                  &welcome);
    stream->Write(welcome);
    {
      const std::lock_guard<std::mutex> lock(mutex);
      streams[rank] = stream;
    }
    Note(rank, *first);
    absl::Status wrong;
    while (wrong.ok() && stream->Read(&up)) {
      const absl::StatusOr<wire::UpMessage> message = wire::FromProto(up);
      wrong = message.status();
      if (message.ok()) Note(rank, *message);
    }
    const std::lock_guard<std::mutex> lock(mutex);
    if (streams[rank] == stream) streams[rank] = nullptr;
    return wire::ToGrpc(wrong);
  }

  grpc::Status AllGather(grpc::ServerContext* context, const v1::AllGatherRequest* request,
                         v1::AllGatherResponse* response) override {
    std::unique_lock<std::mutex> lock(mutex);
    const auto round = [&](int number) -> std::map<uint32_t, std::string>& {
      return rounds[absl::StrCat(request->launch_id(), "/", number == 0 ? "" : request->token(),
                                 "/", number)];
    };
    int number = 0;
    if (!absl::SimpleAtoi(request->key(), &number)) {
      return {grpc::StatusCode::INVALID_ARGUMENT, "key"};
    }
    // For ranks that a daemon which died has not answered.
    if (number > 0) round(number - 1)[request->rank()] = request->previous_blob();
    std::map<uint32_t, std::string>& blobs = round(number);
    blobs[request->rank()] = request->blob();
    ++num_all_gathers;
    ++num_said;
    more.notify_all();
    const auto all_here = [&] { return blobs.size() == request->world_size(); };
    // Before the caller stops waiting for the answer, or when the daemon is killed.
    const auto until = context->deadline() - std::chrono::seconds(2);
    while (!more.wait_for(lock, std::chrono::milliseconds(20), all_here)) {
      if (context->IsCancelled()) return grpc::Status::CANCELLED;
      if (std::chrono::system_clock::now() < until) continue;
      return {grpc::StatusCode::DEADLINE_EXCEEDED, "rank 1 did not come"};
    }
    for (const auto& [rank, blob] : blobs) response->add_blobs(blob);
    response->set_token("token");
    return grpc::Status::OK;
  }

  grpc::Status StandsBy(grpc::ServerContext* context) const {
    context->AddTrailingMetadata(wire::kLeaderKey, *options.standby_for);
    return {grpc::StatusCode::UNAVAILABLE, "NOT_LEADER"};
  }

  grpc::Status ReserveVersion(grpc::ServerContext* context,
                              const v1::ReserveVersionRequest* /*request*/,
                              v1::ReserveVersionResponse* response) override {
    if (options.standby_for) return StandsBy(context);
    if (!options.reserved.has_value()) return {grpc::StatusCode::UNIMPLEMENTED, "an old daemon"};
    response->set_version(static_cast<uint64_t>(*options.reserved));
    return grpc::Status::OK;
  }

  grpc::Status GetLeader(grpc::ServerContext* /*context*/, const v1::GetLeaderRequest* request,
                         v1::GetLeaderResponse* response) override {
    const std::lock_guard<std::mutex> lock(mutex);
    asked_for = request->run_id();
    if (!options.leads_with.has_value()) return {grpc::StatusCode::NOT_FOUND, "no such run"};
    response->set_term(static_cast<uint64_t>(options.term));
    response->set_connected_ranks(static_cast<uint32_t>(*options.leads_with));
    return grpc::Status::OK;
  }

  grpc::Status GetPlacement(grpc::ServerContext* context,
                            const v1::GetPlacementRequest* /*request*/,
                            v1::GetPlacementResponse* response) override {
    if (options.standby_for) return StandsBy(context);
    if (!options.stored.has_value()) return {grpc::StatusCode::NOT_FOUND, "no such job"};
    wire::ToProto(options.stored->placement, options.stored->version,
                  response->mutable_placement());
    response->set_next_version(static_cast<uint64_t>(options.next_version));
    return grpc::Status::OK;
  }

  void Note(int32_t rank, const wire::UpMessage& message) {
    const std::lock_guard<std::mutex> lock(mutex);
    said[rank].push_back(message);
    ++num_said;
    more.notify_all();
  }

  const Options options;
  int port = 0;
  std::mutex mutex;  // guards what follows
  std::condition_variable more;
  int64_t num_said = 0;
  std::map<int32_t, Stream*> streams;
  std::map<int32_t, std::vector<wire::UpMessage>> said;
  std::map<std::string, std::map<uint32_t, std::string>> rounds;
  std::string asked_for;
  int num_all_gathers = 0;
  std::unique_ptr<grpc::Server> server;
};

ScriptedDaemon::ScriptedDaemon(const Options& options) : impl_(std::make_unique<Impl>(options)) {
  EXPECT_NE(impl_->server, nullptr) << "port " << options.port;
}

ScriptedDaemon::~ScriptedDaemon() {
  impl_->server->Shutdown(std::chrono::system_clock::now());
  impl_->server->Wait();
}

int ScriptedDaemon::port() const { return impl_->port; }
std::string ScriptedDaemon::endpoint() const { return absl::StrCat("127.0.0.1:", port()); }

void ScriptedDaemon::WaitForRanks(int32_t num_ranks) const {
  for (int32_t rank = 0; rank < num_ranks; ++rank) WaitFor<wire::Hello>(rank);
}

void ScriptedDaemon::WaitForAllGathers(int count) const {
  Await([&] {
    const std::lock_guard<std::mutex> lock(impl_->mutex);
    return impl_->num_all_gathers >= count;
  });
}

bool ScriptedDaemon::Send(int32_t rank, const wire::DownMessage& message) {
  v1::Down down;
  wire::ToProto(message, &down);
  return SendBytes(rank, down.SerializeAsString());
}

std::string ScriptedDaemon::asked_for() const {
  const std::lock_guard<std::mutex> lock(impl_->mutex);
  return impl_->asked_for;
}

bool ScriptedDaemon::SendBytes(int32_t rank, const std::string& bytes) {
  v1::Down down;
  EXPECT_TRUE(down.ParseFromString(bytes));
  const std::lock_guard<std::mutex> lock(impl_->mutex);
  Stream* const stream = impl_->streams[rank];
  return stream != nullptr && stream->Write(down);
}

bool ScriptedDaemon::SendUnreadable(int32_t rank) {
  v1::Down down;
  down.mutable_cancel()->set_reason("\xff");
  const std::lock_guard<std::mutex> lock(impl_->mutex);
  Stream* const stream = impl_->streams[rank];
  return stream != nullptr && stream->Write(down);
}

void ScriptedDaemon::SendAll(const wire::DownMessage& message) {
  std::vector<int32_t> ranks;
  {
    const std::lock_guard<std::mutex> lock(impl_->mutex);
    for (const auto& [rank, stream] : impl_->streams) ranks.push_back(rank);
  }
  for (const int32_t rank : ranks) Send(rank, message);
}

std::vector<wire::UpMessage> ScriptedDaemon::Said(int32_t rank) const {
  const std::lock_guard<std::mutex> lock(impl_->mutex);
  return impl_->said[rank];
}

bool ScriptedDaemon::Await(const std::function<bool()>& condition) const {
  const auto until = std::chrono::steady_clock::now() + std::chrono::seconds(20);
  std::unique_lock<std::mutex> lock(impl_->mutex);
  do {
    const int64_t num_said = impl_->num_said;
    lock.unlock();
    if (condition()) return true;
    lock.lock();
    if (impl_->num_said != num_said) continue;  // said while the condition was looked at
    impl_->more.wait_until(lock, until, [&] { return impl_->num_said != num_said; });
  } while (std::chrono::steady_clock::now() < until);
  ADD_FAILURE() << "the rank did not say it within 20 s";
  return false;
}

}  // namespace eplb
