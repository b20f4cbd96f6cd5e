#include "tests/tools/bench/raw_sink.h"

#include <csignal>
#include <cstdio>
#include <memory>

#include <grpcpp/generic/async_generic_service.h>
#include <grpcpp/security/server_credentials.h>
#include <grpcpp/server.h>
#include <grpcpp/server_builder.h>

namespace eplb::bench {
namespace {

constexpr int kMaxRawMessageBytes = 64 << 20;

class Reader : public grpc::ServerGenericBidiReactor {
 public:
  Reader() { StartRead(&message_); }
  void OnReadDone(bool ok) override {
    if (!ok) return Finish(grpc::Status::OK);
    message_.Clear();
    StartRead(&message_);
  }
  void OnDone() override { delete this; }

 private:
  grpc::ByteBuffer message_;
};

class Service : public grpc::CallbackGenericService {
 public:
  grpc::ServerGenericBidiReactor* CreateReactor(
      grpc::GenericCallbackServerContext* /*context*/) override {
    return new Reader();  // deletes itself
  }
};

}  // namespace

int RunRawSink() {
  sigset_t signals;
  sigemptyset(&signals);
  sigaddset(&signals, SIGTERM);
  pthread_sigmask(SIG_BLOCK, &signals, nullptr);
  Service service;
  int port = 0;
  grpc::ServerBuilder builder;
  builder.SetMaxReceiveMessageSize(kMaxRawMessageBytes);
  builder.AddListeningPort("127.0.0.1:0", grpc::InsecureServerCredentials(), &port);
  builder.RegisterCallbackGenericService(&service);
  const std::unique_ptr<grpc::Server> server = builder.BuildAndStart();
  if (server == nullptr || port == 0) {
    (void)std::fprintf(stderr, "cannot listen on 127.0.0.1\n");
    return 1;
  }
  (void)std::printf("{\"event\":\"listening\",\"grpc\":\"127.0.0.1:%d\"}\n", port);
  (void)std::fflush(stdout);
  int signal = 0;
  (void)sigwait(&signals, &signal);
  server->Shutdown(std::chrono::system_clock::now());
  return 0;
}

}  // namespace eplb::bench
