/* Prints the constants of the header, as the C compiler sees them. */
#include <stdio.h>

#include <netpolicy.h>

int main(void)
{
	printf("%d %d %d %d %d %d ", NET_POLICY_LATENCY, NET_POLICY_BULK, NET_POLICY_CPU, NET_POLICY_MIX, NET_POLICY_POWER,
	       NET_POLICY_NONE);
	printf("%d %d %d %d\n", SO_NETPOLICY, PR_SET_NETPOLICY, PR_GET_NETPOLICY, NETPOLICY_IS_SET);
	return 0;
}
