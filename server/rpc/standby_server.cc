// Refuses every call with the leader in its trailers.
#include "server/rpc/standby_server.h"

#include <atomic>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include <grpc/support/time.h>
#include <grpcpp/alarm.h>
#include <grpcpp/generic/async_generic_service.h>
#include <grpcpp/grpcpp.h>

#include "base/errors.h"
#include "base/status_macros.h"
#include "proto/wire/channel_credentials.h"
#include "proto/wire/names.h"
#include "proto/wire/status.h"
#include "server/rpc/connection_acceptor.h"
#include "server/rpc/gate.h"
#include "server/rpc/message_bytes.h"
#include "server/rpc/refused_jobs.h"
#include "server/rpc/server_credentials.h"

#include "eplb/v1/session.pb.h"

namespace eplb {
namespace {

constexpr int kStandbyBacklog = 1024;
constexpr size_t kStandbyListeners = 8;        // addresses that a host's name stands for
constexpr int kStandbyIdleMs = 10'000;         // a client that was refused goes elsewhere
constexpr size_t kStandbyMemory = 64UL << 20;  // gRPC's buffers of all connections
constexpr int kStandbyStreams = 128;
constexpr int kStandbyMetadataBytes = 8192;
constexpr int64_t kStandbyClosingMs = 100;  // calls have this long to end
constexpr int64_t kHelloPatienceMs = 1000;

// Puts the leader and the trouble into the trailers and returns the refusal.
grpc::Status Refuse(grpc::GenericCallbackServerContext* context, const std::string& leader,
                    const std::string& trouble) {
  context->AddTrailingMetadata(wire::kLeaderKey, leader.empty() ? wire::kNoLeader : leader);
  if (!trouble.empty()) {
    context->AddTrailingMetadata(wire::kTroubleKey, Clipped(trouble, wire::kMaxStatusMessage));
  }
  return wire::ToGrpc(Unavailable(
      "NOT_LEADER: this daemon stands by",
      leader.empty() ? ", and none leads at the moment" : absl::StrCat("; ", leader, " leads"),
      trouble.empty() ? "" : "; ", trouble));
}

// Answers one call and ends with it.
class NotLeader : public grpc::ServerGenericBidiReactor {
 public:
  explicit NotLeader(const grpc::Status& refusal) { Finish(refusal); }
  void OnDone() override { delete this; }
};

std::string JobOf(const grpc::ByteBuffer& bytes) {
  v1::Up message;
  return ParseBytes(bytes, &message) ? message.hello().job() : "";
}

// Refuses a rank's stream once its Hello has arrived, or after kHelloPatienceMs without one.
class RefusedRank : public grpc::ServerGenericBidiReactor {
 public:
  RefusedRank(grpc::Status refusal, std::string host, RefusedJobs* jobs)
      : refusal_(std::move(refusal)), host_(std::move(host)), jobs_(jobs) {
    alarm_.Set(gpr_time_add(gpr_now(GPR_CLOCK_MONOTONIC),
                            gpr_time_from_millis(kHelloPatienceMs, GPR_TIMESPAN)),
               [this](bool) {
                 FinishOnce();
                 Release();
               });
    StartRead(&hello_);
  }
  void OnReadDone(bool ok) override {
    const std::string job = ok ? JobOf(hello_) : "";
    if (wire::CheckPlainName("job", job).ok()) jobs_->Add(host_, job);
    FinishOnce();
  }
  void OnDone() override {
    alarm_.Cancel();
    Release();
  }

 private:
  void FinishOnce() {
    if (!finished_.exchange(true)) Finish(refusal_);
  }
  // The alarm and gRPC each hold the reactor.
  void Release() {
    if (--holders_ == 0) delete this;
  }

  const grpc::Status refusal_;
  const std::string host_;
  RefusedJobs* const jobs_;
  grpc::ByteBuffer hello_;
  grpc::Alarm alarm_;
  std::atomic<bool> finished_ = false;
  std::atomic<int> holders_ = 2;
};

class RefusingService : public grpc::CallbackGenericService {
 public:
  RefusingService(std::function<std::string()> leader, std::function<std::string()> trouble)
      : leader_(std::move(leader)), trouble_(std::move(trouble)) {}

  std::set<std::string> TakeRefusedJobs() { return jobs_.Take(); }

 private:
  static constexpr char kSession[] = "/eplb.v1.Balancer/Session";

  grpc::ServerGenericBidiReactor* CreateReactor(
      grpc::GenericCallbackServerContext* context) override {
    grpc::Status refusal = Refuse(context, leader_(), trouble_());
    if (context->method() == kSession) {
      return new RefusedRank(std::move(refusal), HostOf(context->peer()), &jobs_);
    }
    return new NotLeader(refusal);
  }

  const std::function<std::string()> leader_;
  const std::function<std::string()> trouble_;
  RefusedJobs jobs_;
};

}  // namespace

struct StandbyServer::Parts {
  Parts(std::function<std::string()> leader, std::function<std::string()> trouble)
      : service(std::move(leader), std::move(trouble)) {}

  Address address;
  RefusingService service;
  std::unique_ptr<grpc::Server> server;
  std::unique_ptr<grpc::experimental::ExternalConnectionAcceptor> door;
  std::vector<std::unique_ptr<ConnectionAcceptor>> acceptors;
};

absl::StatusOr<std::unique_ptr<StandbyServer>> StandbyServer::Start(StandbyOptions options) {
  grpc::EnableDefaultHealthCheckService(true);
  auto parts = std::make_unique<Parts>(std::move(options.leader), std::move(options.trouble));
  EPLB_ASSIGN_OR_RETURN(const std::shared_ptr<grpc::ServerCredentials> credentials,
                        MakeServerCredentials(options.tls));
  EPLB_ASSIGN_OR_RETURN(TcpListeners bound,
                        ListenTcp(options.listen, kStandbyBacklog, kStandbyListeners));
  parts->address = bound.address;
  grpc::ServerBuilder builder;
  builder.SetResourceQuota(grpc::ResourceQuota("standby").Resize(kStandbyMemory));
  builder.AddChannelArgument(GRPC_ARG_MAX_CONCURRENT_STREAMS, kStandbyStreams);
  builder.AddChannelArgument(GRPC_ARG_MAX_METADATA_SIZE, kStandbyMetadataBytes);
  builder.AddChannelArgument(
      GRPC_ARG_SERVER_HANDSHAKE_TIMEOUT_MS,
      static_cast<int>(absl::ToInt64Milliseconds(options.handshake_deadline)));
  builder.AddChannelArgument(GRPC_ARG_MAX_CONNECTION_IDLE_MS, kStandbyIdleMs);
  builder.RegisterCallbackGenericService(&parts->service);
  using Door = grpc::ServerBuilder::experimental_type::ExternalConnectionType;
  parts->door = builder.experimental().AddExternalConnectionAcceptor(Door::FROM_FD, credentials);
  parts->server = builder.BuildAndStart();
  if (parts->server == nullptr) return Unavailable("cannot serve on ", options.listen.Text());
  if (auto* health = parts->server->GetHealthCheckService()) health->SetServingStatus(false);
  for (Descriptor& listener : bound.sockets) {
    parts->acceptors.push_back(std::make_unique<ConnectionAcceptor>(
        std::move(listener),
        ConnectionAcceptor::Options{.address = parts->address.Text(),
                                    .descriptors_below = options.descriptors_below,
                                    .silence = options.handshake_deadline,
                                    .serve = [raw = parts.get()](Descriptor one) {
                                      HandToGrpc(std::move(one), *raw->door);
                                    }}));
    parts->acceptors.back()->Start();
  }
  return std::unique_ptr<StandbyServer>(new StandbyServer(std::move(parts)));
}

StandbyServer::StandbyServer(std::unique_ptr<Parts> parts) : parts_(std::move(parts)) {}

StandbyServer::~StandbyServer() {
  for (const auto& acceptor : parts_->acceptors) acceptor->Stop();
  parts_->server->Shutdown(gpr_time_add(gpr_now(GPR_CLOCK_MONOTONIC),
                                        gpr_time_from_millis(kStandbyClosingMs, GPR_TIMESPAN)));
  parts_->server->Wait();
}

const Address& StandbyServer::address() const { return parts_->address; }
std::set<std::string> StandbyServer::TakeRefusedJobs() { return parts_->service.TakeRefusedJobs(); }

bool Reaches(const std::string& address, const wire::TlsFiles& tls, absl::Duration within) {
  grpc::ChannelArguments arguments;
  arguments.SetInt(GRPC_ARG_USE_LOCAL_SUBCHANNEL_POOL, 1);
  arguments.SetInt(GRPC_ARG_ENABLE_HTTP_PROXY, 0);
  const auto credentials = wire::MakeChannelCredentials(tls, &arguments);
  if (!credentials.ok()) return false;
  const auto channel = grpc::CreateCustomChannel(address, *credentials, arguments);
  const gpr_timespec deadline =
      gpr_time_add(gpr_now(GPR_CLOCK_MONOTONIC),
                   gpr_time_from_millis(absl::ToInt64Milliseconds(within), GPR_TIMESPAN));
  return channel->WaitForConnected(deadline);
}

}  // namespace eplb
