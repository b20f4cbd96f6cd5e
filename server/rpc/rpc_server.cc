// Builds the server from its services and listeners, starts it and takes it down.
#include "server/rpc/rpc_server.h"

#include <sys/stat.h>

#include <condition_variable>
#include <functional>
#include <mutex>
#include <optional>
#include <thread>
#include <utility>

#include <grpcpp/ext/proto_server_reflection_plugin.h>
#include <grpcpp/grpcpp.h>

#include "base/errors.h"
#include "base/monotonic_clock.h"
#include "base/status_macros.h"
#include "server/process/log.h"
#include "server/rpc/admin.h"
#include "server/rpc/balancer.h"
#include "server/rpc/connection_acceptor.h"
#include "server/rpc/grpc_log.h"
#include "server/rpc/planning.h"
#include "server/rpc/query.h"
#include "server/rpc/server_credentials.h"
#include "server/rpc/session.h"
#include "server/rpc/socket_claim.h"
#include "server/rpc/unix_acceptor.h"
#include "server/runner/reader.h"

namespace eplb {

namespace {

constexpr absl::Duration kTick = absl::Milliseconds(200);
constexpr int kKeepaliveMs = 10000;     // an idle connection is asked for life, see kUnansweredMs
constexpr int kMinClientPingMs = 5000;  // clients ping every 10 s
// A connection without a call, of a peer that was refused or has its answer, ends after so long. A
// rank's stream is a call.
constexpr int kMaxIdleMs = 60000;
constexpr int kBacklog = 1024;
constexpr size_t kMaxListeners = 8;      // addresses that a host's name stands for
constexpr int kMaxMetadataBytes = 8192;  // headers of one call
// A socket is made with 0777 less its mask.
constexpr mode_t kOwnerMask = 0177;
constexpr mode_t kGroupMask = 0117;

// Calls a function periodically on its own thread.
class Ticker {
 public:
  // tick: takes MonotonicNow(); must not block for long.
  Ticker(absl::Duration period, std::function<void(absl::Time)> tick)
      : thread_([this, period, tick = std::move(tick)] {
          std::unique_lock lock(mutex_);
          while (!stop_.wait_for(lock, absl::ToChronoMilliseconds(period),
                                 [this] { return stopping_; })) {
            lock.unlock();
            tick(MonotonicNow());
            lock.lock();
          }
        }) {}
  // Waits for the call at work.
  ~Ticker() {
    {
      const std::lock_guard lock(mutex_);
      stopping_ = true;
    }
    stop_.notify_all();
    thread_.join();
  }
  Ticker(const Ticker&) = delete;
  Ticker& operator=(const Ticker&) = delete;

 private:
  std::mutex mutex_;
  std::condition_variable stop_;
  bool stopping_ = false;  // guarded by mutex_
  std::thread thread_;     // last, because it uses the others
};

class ScopedUmask {
 public:
  explicit ScopedUmask(mode_t mask) : before_(umask(mask)) {}
  ~ScopedUmask() { (void)umask(before_); }
  ScopedUmask(const ScopedUmask&) = delete;
  ScopedUmask& operator=(const ScopedUmask&) = delete;

 private:
  const mode_t before_;
};

void Limit(const RpcOptions& options, grpc::ServerBuilder* builder) {
  builder->SetMaxReceiveMessageSize(RpcServer::kMaxReceiveBytes);
  builder->SetResourceQuota(grpc::ResourceQuota("eplbd").Resize(options.max_memory_bytes));
  builder->AddChannelArgument(GRPC_ARG_MAX_CONCURRENT_STREAMS, options.max_streams_per_connection);
  builder->AddChannelArgument(GRPC_ARG_MAX_METADATA_SIZE, kMaxMetadataBytes);
  // A connection that sends nothing, or a byte at a time, ends here.
  builder->AddChannelArgument(
      GRPC_ARG_SERVER_HANDSHAKE_TIMEOUT_MS,
      static_cast<int>(absl::ToInt64Milliseconds(options.handshake_deadline)));
  // Otherwise a second daemon binds the same port and gets every other rank.
  builder->AddChannelArgument(GRPC_ARG_ALLOW_REUSEPORT, 0);
  builder->AddChannelArgument(GRPC_ARG_MAX_CONNECTION_IDLE_MS, kMaxIdleMs);
  builder->AddChannelArgument(GRPC_ARG_KEEPALIVE_TIME_MS, kKeepaliveMs);
  builder->AddChannelArgument(GRPC_ARG_KEEPALIVE_TIMEOUT_MS, kUnansweredMs);
  builder->AddChannelArgument(GRPC_ARG_KEEPALIVE_PERMIT_WITHOUT_CALLS, 1);
  // Otherwise gRPC stops after two pings on an idle path.
  builder->AddChannelArgument(GRPC_ARG_HTTP2_MAX_PINGS_WITHOUT_DATA, 0);
  builder->AddChannelArgument(GRPC_ARG_HTTP2_MIN_RECV_PING_INTERVAL_WITHOUT_DATA_MS,
                              kMinClientPingMs);
}

}  // namespace

struct RpcServer::Parts {
  explicit Parts(RpcOptions given)
      : options(std::move(given)),
        rendezvous(options.rendezvous),
        gate({.tls = options.tls.enabled(),
              .tls_on_unix = options.listen.is_unix(),
              .unix_peers = &unix_peers,
              .identities = options.tls.identities,
              .limits = options.peers}),
        balancer({.runner = options.runner,
                  .gate = &gate,
                  .ends = &ends,
                  .bytes = &bytes,
                  .messages_per_second = options.messages_per_second},
                 &rendezvous),
        query(MakeQueryService({.runner = options.runner,
                                .gate = &gate,
                                .reader = &reader,
                                .server_version = options.server_version,
                                .store = options.store,
                                .leader = options.leader,
                                .started = MonotonicNow()})),
        admin(MakeAdminService(options.runner, &gate)),
        planning(MakePlanningService(options.runner, &gate)) {}

  // Sockets whose connections the kernel names, and gRPC does not: all without TLS.
  absl::Status ListenOnUnix() {
    std::vector<std::string> paths;
    if (options.listen.is_unix() && !options.tls.enabled())
      paths.push_back(options.listen.unix_path);
    if (!unix_socket.empty()) paths.push_back(unix_socket);
    for (const std::string& path : paths) {
      EPLB_ASSIGN_OR_RETURN(acceptors.emplace_back(),
                            UnixAcceptor::Listen(path, {.peers = &unix_peers,
                                                        .descriptors_below = options.unix_below,
                                                        .silence = options.handshake_deadline}));
    }
    return absl::OkStatus();
  }

  // Accepts of TCP are ours, so that connections leave descriptors for everything else.
  absl::Status ListenOnTcp() {
    EPLB_ASSIGN_OR_RETURN(TcpListeners bound, ListenTcp(options.listen, kBacklog, kMaxListeners));
    address = bound.address;
    for (Descriptor& listener : bound.sockets) {
      tcp_acceptors.push_back(std::make_unique<ConnectionAcceptor>(
          std::move(listener), ConnectionAcceptor::Options{.address = address.Text(),
                                                           .descriptors_below = options.tcp_below,
                                                           .silence = options.handshake_deadline,
                                                           .serve = [this](Descriptor one) {
                                                             HandToGrpc(std::move(one), *tcp_door);
                                                           }}));
    }
    return absl::OkStatus();
  }

  void Serve() {
    for (const auto& acceptor : acceptors) acceptor->Serve(server.get());
    for (const auto& acceptor : tcp_acceptors) acceptor->Start();
  }

  // Returns the sum of a counter over the acceptors.
  int64_t SumOf(int64_t (ConnectionAcceptor::*counter)() const) const {
    int64_t sum = 0;
    for (const auto& acceptor : acceptors) sum += (acceptor->connections().*counter)();
    for (const auto& acceptor : tcp_acceptors) sum += (*acceptor.*counter)();
    return sum;
  }

  // Takes the path of options.unix_socket, or goes without it when that is allowed.
  absl::Status ClaimUnixSocket() {
    if (options.unix_socket.empty()) return absl::OkStatus();
    absl::StatusOr<FileLock> lock = ClaimSocket(options.unix_socket);
    if (lock.ok()) {
      socket_lock.emplace(*std::move(lock));
      unix_socket = options.unix_socket;
      return absl::OkStatus();
    }
    if (!options.unix_socket_optional) return lock.status();
    Log(LogLevel::kWarn, "unix_socket_left_out",
        {{"reason", std::string(lock.status().message())}});
    return absl::OkStatus();
  }

  const RpcOptions options;
  Address address;
  std::string unix_socket;  // empty: none
  std::optional<FileLock> socket_lock;
  Rendezvous rendezvous;
  UnixPeers unix_peers;
  Gate gate;
  StreamEndCounters ends;
  MessageBytes bytes;
  RpcTimes times;
  Reader reader;
  BalancerService balancer;
  std::unique_ptr<v1::Query::CallbackService> query;
  std::unique_ptr<v1::Admin::CallbackService> admin;
  std::unique_ptr<v1::Planning::CallbackService> planning;
  std::unique_ptr<grpc::Server> server;
  std::vector<std::unique_ptr<UnixAcceptor>> acceptors;
  std::unique_ptr<grpc::experimental::ExternalConnectionAcceptor> tcp_door;
  std::vector<std::unique_ptr<ConnectionAcceptor>> tcp_acceptors;
  std::unique_ptr<Ticker> ticker;
};

absl::StatusOr<std::unique_ptr<RpcServer>> RpcServer::Start(RpcOptions options) {
  grpc::EnableDefaultHealthCheckService(true);
  static const bool reflection = (grpc::reflection::InitProtoReflectionServerBuilderPlugin(), true);
  (void)reflection;
  auto parts = std::make_unique<Parts>(std::move(options));
  const Address& listen = parts->options.listen;
  if (listen.is_unix()) EPLB_RETURN_IF_ERROR(CheckSocketPath(listen.unix_path));
  EPLB_RETURN_IF_ERROR(parts->ClaimUnixSocket());
  EPLB_ASSIGN_OR_RETURN(const std::shared_ptr<grpc::ServerCredentials> credentials,
                        MakeServerCredentials(parts->options.tls));
  int port = 0;
  grpc::ServerBuilder builder;
  Limit(parts->options, &builder);
  std::vector<std::unique_ptr<grpc::experimental::ServerInterceptorFactoryInterface>> observers;
  observers.push_back(parts->times.MakeObserver());
  builder.experimental().SetInterceptorCreators(std::move(observers));
  // gRPC listens itself only on a Unix socket with TLS.
  const bool own_listener = !listen.is_unix() || !parts->options.tls.enabled();
  if (!own_listener) builder.AddListeningPort(listen.Text(), credentials, &port);
  if (!listen.is_unix()) {
    EPLB_RETURN_IF_ERROR(parts->ListenOnTcp());
    using Door = grpc::ServerBuilder::experimental_type::ExternalConnectionType;
    parts->tcp_door =
        builder.experimental().AddExternalConnectionAcceptor(Door::FROM_FD, credentials);
  }
  builder.RegisterService(&parts->balancer);
  builder.RegisterService(parts->query.get());
  builder.RegisterService(parts->admin.get());
  builder.RegisterService(parts->planning.get());
  {
    // A chmod afterwards would leave a moment in which others may connect. The mask is the whole
    // process's, so other threads run under it for as long as the bind takes; the only files that
    // they may make meanwhile are SQLite's, whose mode it sets itself.
    std::optional<ScopedUmask> mask;
    if (listen.is_unix() || !parts->unix_socket.empty()) {
      mask.emplace(parts->options.unix_socket_for_group ? kGroupMask : kOwnerMask);
    }
    parts->server = builder.BuildAndStart();
    if (parts->server != nullptr) EPLB_RETURN_IF_ERROR(parts->ListenOnUnix());
  }
  if (parts->server == nullptr || (port <= 0 && !own_listener)) {
    return Unavailable("cannot listen on ", listen.Text(),
                       ": it is no place in which a socket can be made");
  }
  parts->Serve();
  GrpcErrorsAreWarnings();
  if (listen.is_unix()) parts->address = listen;
  parts->ticker = std::make_unique<Ticker>(kTick, [raw = parts.get()](absl::Time now) {
    raw->options.runner->sessions().Expire(now);
    raw->options.runner->changes().Expire(now);
    raw->rendezvous.Expire(now);
  });
  return std::unique_ptr<RpcServer>(new RpcServer(std::move(parts)));
}

RpcServer::RpcServer(std::unique_ptr<Parts> parts) : parts_(std::move(parts)) {}

RpcServer::~RpcServer() { Shutdown(absl::ZeroDuration()); }

const Address& RpcServer::address() const { return parts_->address; }
const std::string& RpcServer::unix_socket() const { return parts_->unix_socket; }

void RpcServer::StopServing() {
  if (auto* health = parts_->server->GetHealthCheckService()) health->SetServingStatus(false);
  parts_->options.runner->sessions().StopAccepting();
  parts_->balancer.Drain();
  parts_->rendezvous.FailAll(Unavailable(BalancerService::kDrains));
}

void RpcServer::Shutdown(absl::Duration grace) {
  StopServing();
  Sessions& sessions = parts_->options.runner->sessions();
  sessions.CloseAll(Unavailable("the daemon shuts down; connect again later"));
  parts_->options.runner->changes().FailAll(
      Unavailable("the daemon is shutting down; retry after its restart with the same request_id"));
  // Server::Shutdown with a live stream waits for its whole deadline, so wait for the streams
  // first.
  (void)sessions.WaitUntilEmpty(grace);
  for (const auto& acceptor : parts_->tcp_acceptors) acceptor->Stop();
  for (const auto& acceptor : parts_->acceptors) acceptor->Stop();
  parts_->server->Shutdown(absl::ToChronoTime(absl::Now() + absl::Milliseconds(200)));
  parts_->server->Wait();
}

bool RpcServer::draining() const { return parts_->balancer.draining(); }

int64_t RpcServer::refusals(Refusal refusal) const {
  if (refusal == Refusal::kCrowded) return parts_->SumOf(&ConnectionAcceptor::crowded);
  if (refusal == Refusal::kHandshake) {
    return FailedHandshakes() + parts_->SumOf(&ConnectionAcceptor::silent);
  }
  return parts_->gate.refusals(refusal);
}

StreamEnds RpcServer::stream_ends() const {
  const StreamEndCounters& ends = parts_->ends;
  return {.goodbye = ends.goodbye, .closed = ends.closed, .lost = ends.lost};
}

std::vector<RpcTimes::Series> RpcServer::rpc_times() const { return parts_->times.Take(); }

}  // namespace eplb
