#include "tests/client/session/scripted_daemon.h"

#include <gtest/gtest.h>

#include <map>

#include "absl/base/thread_annotations.h"
#include "absl/strings/str_cat.h"
#include "absl/synchronization/mutex.h"
#include <grpcpp/security/server_credentials.h>
#include <grpcpp/server.h>
#include <grpcpp/server_builder.h>

#include "proto/wire/convert.h"
#include "proto/wire/status.h"

#include "eplb/v1/query.grpc.pb.h"
#include "eplb/v1/session.grpc.pb.h"

namespace eplb::testing {
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
    wire::ToProto(wire::DownMessage(wire::Welcome{options.term, "scripted"}), &welcome);
    stream->Write(welcome);
    {
      const absl::MutexLock lock(&mutex);
      streams[rank] = stream;
      said[rank].push_back(*first);
    }
    absl::Status wrong;
    while (wrong.ok() && stream->Read(&up)) {
      const absl::StatusOr<wire::UpMessage> message = wire::FromProto(up);
      wrong = message.status();
      if (message.ok()) Note(rank, *message);
    }
    const absl::MutexLock lock(&mutex);
    if (streams[rank] == stream) streams[rank] = nullptr;
    return wire::ToGrpc(wrong);
  }

  grpc::Status Exchange(grpc::ServerContext* context, const v1::ExchangeRequest* request,
                        v1::ExchangeResponse* response) override {
    const absl::MutexLock lock(&mutex);
    std::map<uint32_t, std::string>& blobs =
        rounds[absl::StrCat(request->job(), "/", request->key())];
    blobs[request->rank()] = request->blob();
    const auto all_here = [&] { return blobs.size() == request->world_size(); };
    const absl::Duration left =
        absl::FromChrono(context->deadline()) - absl::Now() - absl::Seconds(2);
    if (!mutex.AwaitWithTimeout(absl::Condition(&all_here), left)) {
      return {grpc::StatusCode::DEADLINE_EXCEEDED, "rank 1 did not come"};
    }
    for (const auto& [rank, blob] : blobs) response->add_blobs(blob);
    return grpc::Status::OK;
  }

  grpc::Status GetPlacement(grpc::ServerContext* /*context*/,
                            const v1::GetPlacementRequest* /*request*/,
                            v1::GetPlacementResponse* response) override {
    if (!options.stored.has_value()) return {grpc::StatusCode::NOT_FOUND, "no such job"};
    wire::ToProto(options.stored->placement, options.stored->version,
                  response->mutable_placement());
    return grpc::Status::OK;
  }

  void Note(int32_t rank, const wire::UpMessage& message) {
    const absl::MutexLock lock(&mutex);
    said[rank].push_back(message);
  }

  const Options options;
  int port = 0;
  absl::Mutex mutex;
  std::map<int32_t, Stream*> streams ABSL_GUARDED_BY(mutex);
  std::map<int32_t, std::vector<wire::UpMessage>> said ABSL_GUARDED_BY(mutex);
  std::map<std::string, std::map<uint32_t, std::string>> rounds ABSL_GUARDED_BY(mutex);
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

bool ScriptedDaemon::Send(int32_t rank, const wire::DownMessage& message) {
  v1::Down down;
  wire::ToProto(message, &down);
  const absl::MutexLock lock(&impl_->mutex);
  Stream* const stream = impl_->streams[rank];
  return stream != nullptr && stream->Write(down);
}

void ScriptedDaemon::SendAll(const wire::DownMessage& message) {
  std::vector<int32_t> ranks;
  {
    const absl::MutexLock lock(&impl_->mutex);
    for (const auto& [rank, stream] : impl_->streams) ranks.push_back(rank);
  }
  for (const int32_t rank : ranks) Send(rank, message);
}

std::vector<wire::UpMessage> ScriptedDaemon::Said(int32_t rank) const {
  const absl::MutexLock lock(&impl_->mutex);
  return impl_->said[rank];
}

bool ScriptedDaemon::Await(const std::function<bool()>& condition) const {
  const auto until = std::chrono::steady_clock::now() + std::chrono::seconds(20);
  size_t num_seen = 0;
  while (std::chrono::steady_clock::now() < until) {
    if (condition()) return true;
    const absl::MutexLock lock(&impl_->mutex);
    const auto more = [&] {
      size_t num_said = 0;
      for (const auto& [rank, messages] : impl_->said) num_said += messages.size();
      if (num_said == num_seen) return false;
      num_seen = num_said;
      return true;
    };
    impl_->mutex.AwaitWithTimeout(absl::Condition(&more), absl::Seconds(20));
  }
  ADD_FAILURE() << "the rank did not say it within 20 s";
  return false;
}

}  // namespace eplb::testing
