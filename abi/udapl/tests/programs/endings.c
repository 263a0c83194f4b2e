/* Two processes, on two hosts: connections that one side ends as early as it can. The other side gets ESTABLISHED and then DISCONNECTED,
   never BROKEN. Arguments: "server", or "client" and the server's address. */
#include <arpa/inet.h>

#include "world.h"

#define ROUNDS 12
#define QUALIFIER 4711

/* What ends the connection of a round. */
enum { ACCEPTOR_DISCONNECTS, ACCEPTOR_FREES, CONNECTOR_FREES, CONNECTOR_DISCONNECTS, KINDS };

static struct side side;

/* Frees the EP, which ends its connection, and creates another one. */
static void replace_ep(void) {
  OK(dat_ep_free(side.ep));
  empty(side.connect);
  create_ep(&side, DAT_COMPLETION_DEFAULT_FLAG);
}

static void disconnect(void) {
  OK(dat_ep_disconnect(side.ep, DAT_CLOSE_ABRUPT_FLAG));
  EVENT(side.connect, DAT_CONNECTION_EVENT_DISCONNECTED);
}

static void serve(void) {
  DAT_PSP_HANDLE psp;
  OK(dat_psp_create(side.ia, QUALIFIER, side.cr, DAT_PSP_CONSUMER_FLAG, &psp));
  printf("ready\n");
  for (int round = 0; round < ROUNDS; round++) {
    DAT_EVENT request = EVENT(side.cr, DAT_CONNECTION_REQUEST_EVENT);
    OK(dat_cr_accept(request.event_data.cr_arrival_event_data.cr_handle, side.ep, 0, NULL));
    switch (round % KINDS) {
    case ACCEPTOR_DISCONNECTS:
      disconnect();
      break;
    case ACCEPTOR_FREES:
      break;
    default:
      EVENT(side.connect, DAT_CONNECTION_EVENT_ESTABLISHED);
      EVENT(side.connect, DAT_CONNECTION_EVENT_DISCONNECTED);
    }
    replace_ep();
  }
  OK(dat_psp_free(psp));
}

static void connect_to(const char *server) {
  struct sockaddr_in address = {.sin_family = AF_INET};
  CHECK(inet_pton(AF_INET, server, &address.sin_addr) == 1);
  for (int round = 0; round < ROUNDS; round++) {
    OK(dat_ep_connect(side.ep, (DAT_IA_ADDRESS_PTR)&address, QUALIFIER, LONG, 0, NULL, DAT_QOS_BEST_EFFORT, DAT_CONNECT_DEFAULT_FLAG));
    EVENT(side.connect, DAT_CONNECTION_EVENT_ESTABLISHED);
    if (round == ROUNDS - 1) {
      /* The process exits, and closes nothing. */
      OK(dat_ep_disconnect(side.ep, DAT_CLOSE_ABRUPT_FLAG));
      printf("done\n");
      fflush(stdout);
      _exit(0);
    }
    switch (round % KINDS) {
    case CONNECTOR_FREES:
      break;
    case CONNECTOR_DISCONNECTS:
      disconnect();
      break;
    default:
      EVENT(side.connect, DAT_CONNECTION_EVENT_DISCONNECTED);
    }
    replace_ep();
  }
}

int main(int argc, char **argv) {
  setvbuf(stdout, NULL, _IOLBF, 0);
  CHECK(argc > 1);
  open_side(&side, DAT_COMPLETION_DEFAULT_FLAG);
  if (argc > 2) {
    connect_to(argv[2]);
  } else {
    serve();
    printf("done\n");
  }
  return 0;
}
