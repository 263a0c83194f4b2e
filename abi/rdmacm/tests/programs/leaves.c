/* Two sides of a connection. One exits as soon as it is connected, without a call; the other waits for the event that says so.
 * Arguments: "server" or "client", the server's address, the port, "leaves" or "waits". */
#include <stdio.h>
#include <string.h>
#include <rdma/rdma_cma.h>

static int fails(const char *what)
{
	perror(what);
	return 1;
}

int main(int argc, char **argv)
{
	int is_server = argc == 5 && !strcmp(argv[1], "server");
	int leaves = argc == 5 && !strcmp(argv[4], "leaves");
	struct rdma_addrinfo hints = { .ai_port_space = RDMA_PS_TCP, .ai_flags = is_server ? RAI_PASSIVE : 0 }, *info;
	struct ibv_qp_init_attr attr = { .cap = { 1, 1, 1, 1, 0 }, .sq_sig_all = 1 };
	struct rdma_cm_event *event;
	struct rdma_cm_id *listener, *id;
	if (argc != 5)
		return 2;
	if (rdma_getaddrinfo(argv[2], argv[3], &hints, &info))
		return fails("rdma_getaddrinfo");
	if (rdma_create_ep(&id, info, NULL, &attr))
		return fails("rdma_create_ep");
	if (is_server) {
		listener = id;
		if (rdma_listen(listener, 1) || rdma_get_request(listener, &id) || rdma_accept(id, NULL))
			return fails("rdma_accept");
	} else if (rdma_connect(id, NULL)) {
		return fails("rdma_connect");
	}
	if (leaves)
		return 0;
	if (rdma_get_cm_event(id->channel, &event))
		return fails("rdma_get_cm_event");
	printf("%s\n", rdma_event_str(event->event));
	return 0;
}
