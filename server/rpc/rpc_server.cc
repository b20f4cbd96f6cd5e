#include "server/rpc/rpc_server.h"

#include <sys/stat.h>

#include <atomic>
#include <utility>

#include "absl/strings/str_cat.h"
#include <grpc/support/log.h>
#include <grpcpp/ext/proto_server_reflection_plugin.h>
#include <grpcpp/grpcpp.h>

#include "server/background/ticker.h"
#include "server/log.h"
#include "server/rpc/exchange.h"
#include "server/rpc/listen_check.h"
#include "server/rpc/query.h"
#include "server/rpc/session.h"
#include "server/runner/monotonic_clock.h"

namespace eplb {
namespace {

constexpr absl::Duration kTick = absl::Milliseconds(200);
constexpr int kKeepaliveMs = 30000;         // an idle connection is asked for life
constexpr int kKeepaliveTimeoutMs = 10000;  // and dropped without an answer: a frozen rank
constexpr int kMinClientPingMs = 10000;
constexpr mode_t kSocketMode = 0660;

// Until a server listens, what gRPC says about it is in the error that Start returns.
std::atomic<bool> grpc_errors_are_warnings = false;

using BalancerBase = v1::Balancer::WithRawCallbackMethod_Session<
    v1::Balancer::WithCallbackMethod_Exchange<v1::Balancer::Service>>;

class BalancerService : public BalancerBase {
 public:
  BalancerService(Runner* runner, int32_t messages_per_second, Rendezvous* rendezvous)
      : services_{.runner = runner, .bytes = &bytes_, .messages_per_second = messages_per_second},
        rendezvous_(rendezvous) {}

  SessionStream* Session(grpc::CallbackServerContext* context) override {
    return StartSession(context, services_);
  }

  grpc::ServerUnaryReactor* Exchange(grpc::CallbackServerContext* context,
                                     const v1::ExchangeRequest* request,
                                     v1::ExchangeResponse* response) override {
    if (!draining_) return StartExchange(*request, response, rendezvous_);
    grpc::ServerUnaryReactor* reactor = context->DefaultReactor();
    reactor->Finish({grpc::StatusCode::UNAVAILABLE, "the daemon drains, come back later"});
    return reactor;
  }

  void Drain() { draining_ = true; }

 private:
  MessageBytes bytes_;
  const SessionServices services_;
  Rendezvous* const rendezvous_;
  std::atomic<bool> draining_ = false;
};

void Configure(const std::string& target, int* port, grpc::ServerBuilder* builder) {
  builder->SetMaxReceiveMessageSize(RpcServer::kMaxReceiveBytes);
  // Otherwise a second daemon binds the same port and gets every other rank.
  builder->AddChannelArgument(GRPC_ARG_ALLOW_REUSEPORT, 0);
  builder->AddChannelArgument(GRPC_ARG_KEEPALIVE_TIME_MS, kKeepaliveMs);
  builder->AddChannelArgument(GRPC_ARG_KEEPALIVE_TIMEOUT_MS, kKeepaliveTimeoutMs);
  builder->AddChannelArgument(GRPC_ARG_KEEPALIVE_PERMIT_WITHOUT_CALLS, 1);
  builder->AddChannelArgument(GRPC_ARG_HTTP2_MIN_RECV_PING_INTERVAL_WITHOUT_DATA_MS,
                              kMinClientPingMs);
  builder->AddListeningPort(target, grpc::InsecureServerCredentials(), port);
}

}  // namespace

struct RpcServer::Parts {
  explicit Parts(RpcOptions given)
      : options(std::move(given)),
        rendezvous(options.rendezvous),
        balancer(options.runner, options.messages_per_second, &rendezvous),
        query(MakeQueryService({.runner = options.runner,
                                .server_version = options.server_version,
                                .started = MonotonicNow()})) {}

  const RpcOptions options;
  Address address;
  Rendezvous rendezvous;
  BalancerService balancer;
  std::unique_ptr<v1::Query::CallbackService> query;
  std::unique_ptr<grpc::Server> server;
  std::unique_ptr<Ticker> ticker;
};

absl::StatusOr<std::unique_ptr<RpcServer>> RpcServer::Start(RpcOptions options) {
  grpc::EnableDefaultHealthCheckService(true);
  static const bool reflection = (grpc::reflection::InitProtoReflectionServerBuilderPlugin(), true);
  (void)reflection;
  auto parts = std::make_unique<Parts>(std::move(options));
  const Address& listen = parts->options.listen;
  if (listen.is_unix() && IsServed(listen.unix_path)) {
    return absl::UnavailableError(
        absl::StrCat("cannot listen on ", listen.Text(), ": another process serves there"));
  }
  int port = 0;
  grpc::ServerBuilder builder;
  Configure(listen.Text(), &port, &builder);
  builder.RegisterService(&parts->balancer);
  builder.RegisterService(parts->query.get());
  parts->server = builder.BuildAndStart();
  if (parts->server == nullptr || port <= 0) {
    return absl::UnavailableError(
        absl::StrCat("cannot listen on ", listen.Text(), ": ", WhyNotListening(listen)));
  }
  if (listen.is_unix()) (void)chmod(listen.unix_path.c_str(), kSocketMode);
  grpc_errors_are_warnings = true;
  parts->address = listen.is_unix() ? listen : listen.WithPort(port);
  parts->ticker = std::make_unique<Ticker>(kTick, [raw = parts.get()](absl::Time now) {
    raw->options.runner->sessions().Expire(now);
    raw->rendezvous.Expire(now);
  });
  return std::unique_ptr<RpcServer>(new RpcServer(std::move(parts)));
}

RpcServer::RpcServer(std::unique_ptr<Parts> parts) : parts_(std::move(parts)) {}

RpcServer::~RpcServer() { Shutdown(absl::ZeroDuration()); }

const Address& RpcServer::address() const { return parts_->address; }

void RpcServer::StopServing() {
  if (auto* health = parts_->server->GetHealthCheckService()) health->SetServingStatus(false);
  parts_->options.runner->sessions().StopAccepting();
  parts_->balancer.Drain();
  parts_->rendezvous.FailAll(absl::UnavailableError("the daemon drains, come back later"));
}

void RpcServer::Shutdown(absl::Duration grace) {
  StopServing();
  Sessions& sessions = parts_->options.runner->sessions();
  sessions.CloseAll(absl::UnavailableError("the daemon goes away, come back later"));
  // Server::Shutdown with a live stream waits for its whole deadline, so wait for the streams
  // first.
  (void)sessions.WaitUntilEmpty(grace);
  parts_->server->Shutdown(absl::ToChronoTime(absl::Now() + absl::Milliseconds(200)));
  parts_->server->Wait();
}

void RouteGrpcLog() {
  gpr_set_log_function([](gpr_log_func_args* args) {
    const bool error = args->severity == GPR_LOG_SEVERITY_ERROR;
    Log(error && grpc_errors_are_warnings ? LogLevel::kWarn : LogLevel::kDebug, "grpc",
        {{"reason", std::string(args->message)}});
  });
}

std::string GrpcVersion() { return grpc::Version(); }

}  // namespace eplb
