/* A peer that asks an rsocket for connections again and again, without the private data of an rsocket. */
#include "sockets.h"

int main(void)
{
	struct rdma_conn_param param = { .qp_num = 0x1000 };
	struct rdma_event_channel *channel;
	uint16_t port;
	int i, server;
	begin();
	server = listener(&port);
	channel = new_channel();
	for (i = 0; i < 1000; i++) {
		struct rdma_cm_id *id = new_client(channel, RDMA_PS_TCP, port);
		struct rdma_cm_event *event;
		GOOD(rdma_connect(id, &param));
		MUST(rdma_get_cm_event(channel, &event) == 0);
		TRUE(event->event == RDMA_CM_EVENT_REJECTED);
		GOOD(rdma_ack_cm_event(event));
		GOOD(rdma_destroy_id(id));
	}
	rdma_destroy_event_channel(channel);
	GOOD(rclose(server));
	return finish();
}
