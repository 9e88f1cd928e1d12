// Shows the state of the gateway as text.
const response = await fetch("api/state");
const state = await response.json();
document.getElementById("page").textContent = state.destinations.map((one) => `${one.name}: ${one.state}`).join("\n");
